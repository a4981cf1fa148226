//! `sd top` on a terminal: what is drawn, and what the keys do. The terminal is put back as it was however the command ends,
//! but by SIGKILL.

use super::lines::{self, Look};
use super::peers;
use super::sample::Rates;
use clap::ValueEnum;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use sd_cli::cli::Column;
use sd_cli::failure::printable;
use sd_cli::table::Align;
use std::time::Duration;

/// Other hosts' engines that are shown at most.
const PEERS: usize = 4;
/// Rows that Page Up and Page Down move by.
const PAGE: usize = 10;
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(60);
const HELP: &str = "q quit  s < > sort  r reverse  p processes  space stop  + - interval  arrows move";

/// What is shown.
pub(super) struct Screen {
    pub(super) look: Look,
    pub(super) interval: Duration,
    pub(super) is_stopped: bool,
    /// Why there is nothing new.
    pub(super) trouble: Option<String>,
    pub(super) rates: Rates,
    table: TableState,
}

/// What a key asks for.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Wish {
    GoOn,
    Quit,
}

impl Screen {
    pub(super) fn new(look: Look, interval: Duration) -> Screen {
        let (rates, table) = (Rates::default(), TableState::default());
        Screen { look, interval, is_stopped: false, trouble: None, rates, table }
    }

    /// Acts on a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::GoOn;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return Wish::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('s' | '>') => self.look.sort = neighbour(self.look.sort, 1),
            KeyCode::Char('<') => self.look.sort = neighbour(self.look.sort, -1),
            KeyCode::Char('r') => self.look.is_reversed = !self.look.is_reversed,
            KeyCode::Char('p') => {
                self.look.has_processes = !self.look.has_processes;
                self.table = TableState::default();
            }
            KeyCode::Char(' ') => self.is_stopped = !self.is_stopped,
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(INTERVAL_MAX),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(INTERVAL_MIN),
            KeyCode::Down => *self.table.offset_mut() += 1,
            KeyCode::Up => *self.table.offset_mut() = self.table.offset().saturating_sub(1),
            KeyCode::PageDown => *self.table.offset_mut() += PAGE,
            KeyCode::PageUp => *self.table.offset_mut() = self.table.offset().saturating_sub(PAGE),
            KeyCode::Home => *self.table.offset_mut() = 0,
            _ => {}
        }
        Wish::GoOn
    }

    /// Draws all of it.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let others = peers::table(&self.rates.peers);
        let others_height = others.as_ref().map_or(0, |it| 1 + it.rows.len().min(PEERS));
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(others_height as u16),
            Constraint::Fill(1),
            Constraint::Length(1),
        ]);
        let [top, state, far, body, bottom] = areas.areas(frame.area());
        frame.render_widget(Paragraph::new(lines::summary(&self.rates)), top);
        frame.render_widget(Paragraph::new(self.state()).style(Modifier::BOLD), state);
        if let Some(others) = others {
            frame.render_widget(widget(&others), far);
        }
        let lines = lines::table(&self.rates, self.look);
        *self.table.offset_mut() = self.table.offset().min(lines.rows.len().saturating_sub(1));
        frame.render_stateful_widget(widget(&lines), body, &mut self.table);
        frame.render_widget(Paragraph::new(HELP).style(Modifier::DIM), bottom);
    }

    fn state(&self) -> String {
        if let Some(trouble) = &self.trouble {
            return printable(trouble);
        }
        let column = self.look.sort.to_possible_value().map(|value| value.get_name().to_owned());
        let order = if self.look.is_reversed { ", reversed" } else { "" };
        let stopped = if self.is_stopped { "; stopped" } else { "" };
        let seconds = self.interval.as_secs_f64();
        format!("by {}{order}, every {seconds:.1} s{stopped}", column.unwrap_or_default())
    }
}

/// A table as it is drawn.
fn widget(lines: &lines::Table) -> Table<'_> {
    let lines::Table { header, rows } = lines;
    let widths: Vec<Constraint> = widths(header, rows).into_iter().map(Constraint::Length).collect();
    let cell = |text: &str, align: &Align| {
        let side = if *align == Align::Right { Alignment::Right } else { Alignment::Left };
        Cell::from(Text::from(text.to_owned()).alignment(side))
    };
    let line =
        |row: &Vec<String>| Row::new(row.iter().zip(*header).map(|(text, (_, align))| cell(text, align)));
    let titles = Row::new(header.iter().map(|(title, align)| cell(title, align)));
    Table::new(rows.iter().map(line).collect::<Vec<_>>(), widths)
        .column_spacing(2)
        .header(titles.style(Style::new().add_modifier(Modifier::REVERSED)))
}

/// The column so many places further in the list, around its end.
fn neighbour(column: Column, step: isize) -> Column {
    let all = Column::value_variants();
    let at = all.iter().position(|other| *other == column).unwrap_or_default() as isize;
    let next = (at + step).rem_euclid(all.len().max(1) as isize);
    all.get(next as usize).copied().unwrap_or(column)
}

/// Of each column: its widest cell.
fn widths(header: &[(&str, Align)], rows: &[Vec<String>]) -> Vec<u16> {
    let width = |(at, (title, _)): (usize, &(&str, Align))| {
        let cells = rows.iter().filter_map(|row| Some(row.get(at)?.chars().count()));
        cells.max().unwrap_or_default().max(title.chars().count()).min(60) as u16
    };
    header.iter().enumerate().map(width).collect()
}

#[cfg(test)]
mod tests {
    use super::super::lines::tests::{LOOK, rates};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen() -> Screen {
        let mut screen = Screen::new(LOOK, Duration::from_secs(1));
        screen.rates = rates();
        screen
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>() + "\n";
        (0..height).map(line).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Wish {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn a_terminal_shows_the_busiest_first() {
        let text = drawn(&mut screen(), 180, 12);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].contains("2 shm, 1 kernel") && lines[1].starts_with("by rate, every 1.0 s"),
            "{text}"
        );
        assert!(
            lines[2].contains("Recv/s") && lines[3].contains("12k") && lines[3].contains("pid=1"),
            "{text}"
        );
        assert!(lines[5].contains("kernel") && lines[5].contains("policy"), "{text}");
        assert!(lines[11].contains("q quit"), "{text}");
    }

    #[test]
    fn terminals_of_any_size_do() {
        for (width, height) in [(1, 1), (3, 2), (20, 3), (80, 4), (500, 2)] {
            drawn(&mut screen(), width, height);
        }
    }

    #[test]
    fn keys() {
        let mut it = screen();
        assert_eq!(press(&mut it, KeyCode::Char('s')), Wish::GoOn);
        assert_eq!(it.look.sort, Column::Received);
        press(&mut it, KeyCode::Char('<'));
        press(&mut it, KeyCode::Char('<'));
        assert_eq!(it.look.sort, Column::Process);
        press(&mut it, KeyCode::Char('r'));
        press(&mut it, KeyCode::Char('p'));
        assert!(drawn(&mut it, 120, 6).contains("three,pid=3"));
        (0..20).for_each(|_| _ = press(&mut it, KeyCode::Char('-')));
        assert_eq!(it.interval, INTERVAL_MIN);
        press(&mut it, KeyCode::PageDown);
        assert!(drawn(&mut it, 120, 6).contains("three"), "not beyond the last row");
        it.trouble = Some("gone\u{1b}[2J".to_owned());
        assert!(drawn(&mut it, 120, 6).contains("gone [2J"));
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!((press(&mut it, KeyCode::Char('q')), it.press(control_c)), (Wish::Quit, Wish::Quit));
    }
}
