//! `sd top`: which connections are busy, live.
//!
//! ```text
//! monitor --document--> sample --two of them--> rates --> lines --> screen, or text, or JSON
//! ```
//! Each look is one question to the monitor, which reads what is in shared memory anyway.

mod lines;
mod peers;
mod sample;
mod screen;

use lines::Look;
use ratatui::crossterm::event::{self, Event};
use sample::{Rates, Sample};
use screen::{Screen, Wish};
use sd_cli::cli::TopOptions;
use sd_cli::failure::{Context, Failure, Result, print};
use sd_cli::{client, place, table};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A signal is noticed as late as that.
const GLANCE: Duration = Duration::from_millis(200);

/// A signal asks for the end.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Runs until a key or a signal ends it, or all is shown that was asked for.
pub(crate) fn main(options: &TopOptions) -> Result<()> {
    let socket = place::socket(options.socket.as_deref());
    let look = Look { sort: options.sort, is_reversed: false, has_processes: options.processes };
    let is_live = !options.batch && !options.json;
    if is_live && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return on_terminal(socket, look, options);
    }
    let mut before = sample(&socket)?;
    let mut left = options.count;
    while left != Some(0) {
        std::thread::sleep(options.interval);
        let now = sample(&socket)?;
        let rates = Rates::between(&before, &now);
        print(&text(&rates, look, options.json)?)?;
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn text(rates: &Rates, look: Look, is_json: bool) -> Result<String> {
    if is_json {
        return Ok(serde_json::to_string(rates).context("JSON")? + "\n");
    }
    let lines::Table { header, rows } = lines::table(rates, look);
    let others = peers::table(&rates.peers);
    let others = others.map(|it| table::render(it.header, &it.rows)).unwrap_or_default();
    Ok(format!("{}\n{others}{}\n", lines::summary(rates), table::render(header, &rows)))
}

fn sample(socket: &Path) -> Result<Sample> {
    let mut document =
        client::status(socket).map_err(|silence| Failure::new(format!("{}: {silence}", socket.display())))?;
    crate::young::add(&mut document);
    Sample::new(&document, sd_sys::time::now_ns())
}

fn on_terminal(socket: PathBuf, look: Look, options: &TopOptions) -> Result<()> {
    // Without a monitor that answers there is nothing to be drawn.
    let first = sample(&socket)?;
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let handler = note_end as extern "C" fn(i32);
        // SAFETY: the handler stores to an atomic and nothing else.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    let mut terminal = ratatui::try_init().context("terminal")?;
    let mut screen = Screen::new(look, options.interval);
    let outcome = watch(&mut terminal, &mut screen, (&socket, first), options.count);
    ratatui::restore();
    outcome
}

extern "C" fn note_end(_signal: i32) {
    IS_OVER.store(true, Ordering::Relaxed);
}

/// Looks, draws, and obeys keys until one of them says that it is enough.
fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    (socket, mut before): (&Path, Sample),
    mut left: Option<u64>,
) -> Result<()> {
    // The first figures come soon.
    let mut due = Instant::now() + screen.interval.min(GLANCE);
    while left != Some(0) && !IS_OVER.load(Ordering::Relaxed) {
        terminal.draw(|frame| screen.draw(frame)).context("terminal")?;
        let pause = due.saturating_duration_since(Instant::now()).min(GLANCE);
        if event::poll(pause).context("terminal")?
            && let Event::Key(key) = event::read().context("terminal")?
            && screen.press(key) == Wish::Quit
        {
            return Ok(());
        }
        if Instant::now() < due {
            continue;
        }
        due = Instant::now() + screen.interval;
        if screen.is_stopped {
            continue;
        }
        match sample(socket) {
            Ok(now) => {
                screen.rates = Rates::between(&before, &now);
                screen.trouble = None;
                before = now;
                left = left.map(|left| left - 1);
            }
            // It may be back at the next look.
            Err(failure) => screen.trouble = Some(failure.text),
        }
    }
    Ok(())
}
