//! Guests: started by qemu, heard on their consoles, ended when they have said that they are done, or when their time is over.
//!
//! ```text
//!  ttyS0  the console: the kernel's and the programs' words, of which an error shows the end
//!  ttyS1  what the guest says to the lab: lines of its own, the last of which is `ended STATUS`
//! ```
//! qemu emulates the processor (TCG), which takes no rights and no hardware. How qemu ends says nothing of what ran inside. A guest that
//! dies or hangs is an error with its console's end.

use super::image::Image;
use harness::scratch::Scratch;
use harness::{Result, fail, product};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Where a guest says what is for the lab.
pub(super) const SAYS_AT: &str = "/dev/ttyS1";
const ENDED: &str = "ended ";
const SAID: &str = "said";
/// The Ethernet address of the guest at the cable's first end.
pub(super) const SERVER_MAC: &str = "52:54:00:77:00:02";
/// The end of a console that is shown.
const TAIL_LINES: usize = 30;
/// Kernel, modules and the machine's files: 7 s of a processor, of which others may leave a twentieth.
const BOOT_LIMIT: Duration = Duration::from_secs(240);

/// How guests are made.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) processors: u32,
    pub(super) memory_mib: u32,
    /// Its clock counts instructions: four nanoseconds for each.
    pub(super) is_counting: bool,
}

/// An end of the virtual cable between two guests.
pub(super) struct Cable {
    socket: PathBuf,
    is_first: bool,
}

impl Cable {
    pub(super) fn new(folder: &Path) -> [Cable; 2] {
        [true, false].map(|is_first| Cable { socket: folder.join("cable"), is_first })
    }

    fn args(&self) -> [String; 4] {
        let role = if self.is_first { "on" } else { "off" };
        let mac = if self.is_first { SERVER_MAC } else { "52:54:00:77:00:01" };
        let path = self.socket.display();
        [
            "-netdev".to_owned(),
            format!("stream,id=cable,server={role},addr.type=unix,addr.path={path}"),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev=cable,mac={mac},romfile="),
        ]
    }
}

/// What a guest's kernel and programs have said.
#[derive(Default)]
struct Console {
    lines: Vec<String>,
    is_shown: bool,
}

/// A running guest; it ends when this is dropped.
pub(super) struct Guest {
    name: &'static str,
    qemu: Child,
    console: Arc<Mutex<Console>>,
    scratch: Scratch,
}

impl Guest {
    /// Starts one that runs this program with these words.
    pub(super) fn start(
        name: &'static str,
        image: &Image,
        machine: Machine,
        cable: Option<&Cable>,
        words: &[String],
    ) -> Result<Guest> {
        let scratch = Scratch::new("guest")?;
        let program = std::env::current_exe()?;
        let script = format!("exec {} rdma {}\n", program.display(), words.join(" "));
        std::fs::write(scratch.path().join("guest.sh"), script)?;
        let mut qemu = Command::new("qemu-system-x86_64");
        match machine.is_counting {
            true => qemu.args(["-accel", "tcg,thread=single,tb-size=256", "-icount", "shift=2"]),
            false => qemu.args(["-accel", "tcg,thread=multi,tb-size=256"]),
        };
        qemu.args(["-M", "pc", "-cpu", "max,la57=off"])
            .args(["-smp", &machine.processors.to_string(), "-m", &machine.memory_mib.to_string()])
            .args(["-display", "none", "-no-reboot", "-nodefaults", "-serial", "stdio"])
            .args(["-serial", &format!("file:{}", scratch.path().join(SAID).display())])
            .args(["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"])
            .args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"])
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initramfs)
            .args(cable.map(Cable::args).into_iter().flatten())
            .arg("-append")
            .arg(format!(
                "console=ttyS0 panic=-1 quiet mitigations=off nokaslr random.trust_cpu=1 lab={} target={}",
                scratch.path().display(),
                product::target().display()
            ));
        qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = qemu.spawn().map_err(|error| format!("qemu-system-x86_64: {error}"))?;
        let console = Arc::new(Mutex::new(Console::default()));
        if let Some(output) = child.stdout.take() {
            listen(output, &console);
        }
        if let Some(complaints) = child.stderr.take() {
            listen(complaints, &console);
        }
        let mut guest = Guest { name, qemu: child, console, scratch };
        if let Some(cable) = cable.filter(|cable| cable.is_first) {
            let end = Instant::now() + BOOT_LIMIT;
            while !cable.socket.exists() {
                guest.must_run(end, "has no cable")?;
            }
        }
        Ok(guest)
    }

    /// Waits until its programs run.
    pub(super) fn wait_until_up(&mut self) -> Result<()> {
        let end = Instant::now() + BOOT_LIMIT;
        while !self.said().iter().any(|line| line == "up") {
            self.must_run(end, "is not up")?;
        }
        Ok(())
    }

    /// Waits for its end: what it has said to the lab.
    pub(super) fn wait(mut self, end: Instant, mut each: impl FnMut(&str)) -> Result<Vec<String>> {
        let mut told = 0;
        loop {
            let said = self.said();
            said[told..].iter().for_each(|line| each(line));
            told = said.len();
            match said.last().and_then(|line| line.strip_prefix(ENDED)) {
                Some("0") => return Ok(said),
                Some(status) => fail!("the {} ended with {status}: {}", self.name, self.tail()),
                None => self.must_run(end, "has not ended")?,
            }
        }
    }

    /// Ends it as a machine that loses its power.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(())
    }

    /// The whole lines that it has said so far.
    pub(super) fn said(&self) -> Vec<String> {
        let text = std::fs::read(self.scratch.path().join(SAID)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Passes its console on from now on.
    pub(super) fn show(&self) {
        if let Ok(mut console) = self.console.lock() {
            console.is_shown = true;
        }
    }

    /// An error, if it does not run or its time is over; else a short wait.
    fn must_run(&mut self, end: Instant, what: &str) -> Result<()> {
        std::thread::sleep(Duration::from_millis(20));
        if let Some(status) = self.qemu.try_wait()? {
            // It has said its last word by now, and the console's is on its way.
            std::thread::sleep(Duration::from_millis(200));
            if !self.said().iter().any(|line| line.starts_with(ENDED)) {
                fail!("the {} {what}; qemu ended with {status}: {}", self.name, self.tail());
            }
        }
        if Instant::now() > end {
            fail!("the {} {what} in time: {}", self.name, self.tail());
        }
        Ok(())
    }

    /// The end of its console.
    pub(super) fn tail(&self) -> String {
        let lines = self.console.lock().map(|console| console.lines.clone()).unwrap_or_default();
        let from = lines.len().saturating_sub(TAIL_LINES);
        format!("its console's end:\n{}", lines[from..].join("\n"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Notes what comes, in a thread that ends with the guest.
fn listen(from: impl std::io::Read + Send + 'static, console: &Arc<Mutex<Console>>) {
    let console = Arc::clone(console);
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(std::io::Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let Ok(mut console) = console.lock() else { return };
            if console.is_shown {
                println!("{line}");
            }
            console.lines.push(line);
        }
    });
}
