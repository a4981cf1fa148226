//! Does what may take as long as a stranger likes, beside the monitor's own thread.
//!
//! close(2) of a stranger's descriptor may wait (SO_LINGER, a file system served by a process), and so may closing a
//! socket in whose queue such descriptors lie. So may a question about a socket: another thread of the stranger's can
//! be inside a call on it, with its lock, in a page fault that the stranger serves. And so may receiving from a socket of
//! which the stranger has kept a copy: the kernel has one lock for all who receive from it.
//!
//! ```text
//! main thread --task, user--> line of that user --> a thread of the pool
//!      ^                                               |
//!      +------- bell, message with its verdict --------+   (tasks that have a result)
//! ```
//! # Guarantees
//! * The main thread never waits for a task.
//! * A user whose tasks all block keeps [`BUSY_MAX`] threads busy and no more; its other tasks wait, those of others
//!   go on: the next task is of the user with the fewest that run.
//! * A monitor whose clients behave has two such threads, which sleep.
//!
//! # Not guaranteed
//! That a task is ever done.

use super::connection::{Incoming, Message, Question};
use super::descriptors::{self, Owned, Unfit, std_fd};
use super::helpers::Start;
use sd_sys::ringer::Ringer;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Tasks of one user that run at once.
const BUSY_MAX: usize = 8;
/// Threads, for all users together.
const THREADS_MAX: usize = 512;
/// Threads that stay though there is nothing to do.
const IDLE_MAX: usize = 2;
/// Tasks that nobody has taken for so long get one more thread.
const UNTAKEN_MAX: Duration = Duration::from_millis(1);
const STACK: usize = 128 << 10;
/// Stands for the user of what takes time, but only so much. No user has this number.
const MEMORY: u32 = u32::MAX - 1;

/// Something to do beside the main thread.
enum Task {
    Close(OwnedFd),
    /// A message of that connection brings a socket: what is it?
    Examine(u64, Question, Box<Message>),
    /// The next message of that connection, whose socket others may hold too, and with it the lock for receiving.
    Receive(u64, OwnedFd),
    /// Wakes whoever watches an eventfd.
    Wake(OwnedFd),
    /// Starts a process, and waits until it runs.
    Start(Start),
}

/// What was found about a connection.
pub(crate) struct Found {
    /// At whose expense.
    pub(crate) uid: u32,
    pub(crate) connection: u64,
    pub(crate) what: What,
}

/// See [`Found`].
pub(crate) enum What {
    /// A message whose listener was looked at.
    Examined(Box<Message>),
    /// A look at its socket.
    Received(Incoming),
}

/// A user's tasks.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Task>,
    running: usize,
}

#[derive(Default)]
struct State {
    lines: BTreeMap<u32, Line>,
    idle: usize,
    threads: usize,
}

impl State {
    /// The first task of the user with the fewest that run.
    fn next(&mut self) -> Option<(u32, Task)> {
        let may = |line: &Line| !line.waiting.is_empty() && line.running < BUSY_MAX;
        let ready = self.lines.iter_mut().filter(|(_, line)| may(line));
        let (uid, line) = ready.min_by_key(|(_, line)| line.running)?;
        line.running += 1;
        Some((*uid, line.waiting.pop_front()?))
    }

    fn has_ready(&self) -> bool {
        self.lines.values().any(|line| !line.waiting.is_empty() && line.running < BUSY_MAX)
    }

    fn done(&mut self, uid: u32) {
        if let Some(line) = self.lines.get_mut(&uid) {
            line.running -= 1;
            if line.running == 0 && line.waiting.is_empty() {
                self.lines.remove(&uid);
            }
        }
    }
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Tasks that wait; read without the lock.
    waiting: AtomicUsize,
    bell: OwnedFd,
    results: Sender<Found>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(self: &Arc<Shared>, uid: u32, task: Task) {
        let mut state = self.lock();
        state.lines.entry(uid).or_default().waiting.push_back(task);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let is_short = state.idle == 0 && state.threads < IDLE_MAX;
        drop(state);
        self.work.notify_one();
        if is_short {
            self.start_thread();
        }
    }

    fn lacks_thread(&self) -> bool {
        let state = self.lock();
        state.idle == 0 && state.threads < THREADS_MAX && state.has_ready()
    }

    fn start_thread(self: &Arc<Shared>) {
        self.lock().threads += 1;
        let shared = self.clone();
        let thread = std::thread::Builder::new().name("closer".into()).stack_size(STACK);
        if let Err(error) = thread.spawn(move || shared.serve()) {
            self.lock().threads -= 1;
            tracing::warn!("no thread for closing descriptors: {error}");
        }
    }

    /// What a thread of the pool does.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some((uid, task)) = state.next() {
                drop(state);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.perform(uid, task);
                state = self.lock();
                state.done(uid);
            } else if state.idle >= IDLE_MAX {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn perform(&self, uid: u32, task: Task) {
        match task {
            Task::Close(fd) => drop(fd),
            Task::Start(start) => start.go(),
            Task::Wake(fd) => sd_sys::fd::eventfd_signal(fd.as_raw_fd()),
            Task::Examine(connection, question, message) => {
                self.tell(uid, connection, What::Examined(examine(question, message)));
            }
            Task::Receive(connection, socket) => {
                let incoming = super::connection::receive(socket.as_fd());
                // Before it is known, as whoever closes the last one closes what lies in its queue.
                drop(socket);
                self.tell(uid, connection, What::Received(incoming));
            }
        }
    }

    fn tell(&self, uid: u32, connection: u64, what: What) {
        let _ = self.results.send(Found { uid, connection, what });
        let _ = sd_sys::fd::write(self.bell.as_raw_fd(), &1u64.to_ne_bytes());
    }
}

/// Closed as well: whoever has the answer knows that we do not keep the port alive.
fn examine(question: Question, mut message: Box<Message>) -> Box<Message> {
    look(question, &mut message);
    message.fds.clear();
    message
}

/// Notes what was found; whether it is what it should be.
fn look(question: Question, message: &mut Message) -> bool {
    let [fd] = message.fds.as_slice() else { return false };
    match question {
        Question::Listener => message.listener = descriptors::check_listener(fd.as_fd()),
        Question::Bound => message.listener = descriptors::check_bound(fd.as_fd()),
        Question::Connected(asked_ms) => {
            message.connected = descriptors::check_connected(fd.as_fd(), asked_ms);
        }
    }
    message.listener.is_ok() || message.connected.is_ok()
}

/// Examines a socket in the main thread itself, where its makers are users whom the monitor serves without bounds: they can do
/// to it what they like anyway. True when it was one that could be looked at, and closed, at once.
pub(crate) fn examine_now(
    question: Question,
    message: &mut Message,
    is_trusted: impl Fn(u32) -> bool,
) -> bool {
    let owner = message.fds.first().and_then(|fd| descriptors::owner_of_tcp(fd.as_fd()).ok());
    if !owner.is_some_and(is_trusted) {
        return false;
    }
    let is_fit = look(question, message);
    if is_fit {
        message.fds.clear();
    }
    is_fit
}

/// See the module.
pub(crate) struct Closers {
    shared: Arc<Shared>,
    results: Receiver<Found>,
}

/// The pool, for [`wake`].
static POOL: OnceLock<Arc<Shared>> = OnceLock::new();

static RINGER: OnceLock<Option<Ringer>> = OnceLock::new();

fn ringer() -> Option<&'static Ringer> {
    let made = RINGER.get_or_init(|| match Ringer::new() {
        Ok(ringer) => Some(ringer),
        Err(sd_sys::Errno(errno)) => {
            let error = io::Error::from_raw_os_error(errno);
            tracing::warn!(
                "no asynchronous I/O ({error}): clients are woken by other threads, which takes longer"
            );
            None
        }
    });
    made.as_ref()
}

/// Wakes whoever watches an eventfd of a user's: without waiting for its owner, and at once, where the kernel does it for
/// us (`sd_sys::ringer`), else by the pool.
pub(crate) fn wake(uid: u32, eventfd: &OwnedFd) {
    let is_woken = ringer().is_some_and(|ringer| ringer.ring(eventfd.as_raw_fd()).is_ok());
    if !is_woken && let (Some(pool), Ok(eventfd)) = (POOL.get(), eventfd.try_clone()) {
        pool.push(uid, Task::Wake(eventfd));
    }
}

impl Closers {
    pub(crate) fn new() -> io::Result<Closers> {
        let bell = sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        let bell = bell.map_err(|error| io::Error::from_raw_os_error(error.0))?;
        let bell = std_fd(bell);
        let (state, work, waiting) = (Mutex::default(), Condvar::new(), AtomicUsize::new(0));
        let (sender, results) = channel();
        let shared = Arc::new(Shared { state, work, waiting, bell, results: sender });
        let _ = (POOL.set(shared.clone()), ringer());
        Ok(Closers { shared, results })
    }

    /// Ready when there are results.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Closes a descriptor of a user's some time.
    pub(crate) fn close(&self, uid: u32, fd: OwnedFd) {
        self.shared.push(uid, Task::Close(fd));
    }

    /// Starts a process for a user.
    pub(crate) fn start(&self, uid: u32, start: Start) {
        self.shared.push(uid, Task::Start(start));
    }

    /// Starts a process of the monitor's own.
    pub(crate) fn start_own(&self, start: Start) {
        self.start(MEMORY, start);
    }

    /// Closes a file in memory, all of whose pages may be given back by that.
    pub(crate) fn give_back(&self, file: OwnedFd) {
        self.shared.push(MEMORY, Task::Close(file));
    }

    /// Receives the next message of a connection; see [`Closers::found`].
    pub(crate) fn receive(&self, uid: u32, connection: u64, socket: OwnedFd) {
        self.shared.push(uid, Task::Receive(connection, socket));
    }

    /// Looks at the socket that a message brings; see [`Closers::found`].
    pub(crate) fn examine(&self, uid: u32, connection: u64, question: Question, message: Box<Message>) {
        self.shared.push(uid, Task::Examine(connection, question, message));
    }

    /// What was found out since the last time.
    pub(crate) fn found(&self) -> Vec<Found> {
        let _ = sd_sys::fd::read(self.shared.bell.as_raw_fd(), &mut [0; 8]);
        self.results.try_iter().collect()
    }

    /// How many of all users' are still to be closed, or looked at.
    pub(crate) fn held_by_all(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// How many descriptors of a user's are still to be closed.
    pub(crate) fn held(&self, uid: u32) -> usize {
        self.shared.lock().lines.get(&uid).map_or(0, |line| line.waiting.len() + line.running)
    }

    /// How long to sleep at most before [`Closers::tend`].
    pub(crate) fn pause(&self) -> Option<Duration> {
        (self.shared.waiting.load(Ordering::Relaxed) != 0 && self.shared.lacks_thread())
            .then_some(UNTAKEN_MAX)
    }

    /// Adds a thread where those that there are are all held up.
    pub(crate) fn tend(&self) {
        if self.shared.waiting.load(Ordering::Relaxed) != 0 && self.shared.lacks_thread() {
            self.shared.start_thread();
        }
    }
}

/// What a message that was not looked at says of its listener.
pub(crate) const NOT_EXAMINED: Result<Owned, Unfit> = Err(Unfit);

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// The end of a pipe whose other end hears of its closing.
    fn pipe() -> (OwnedFd, OwnedFd) {
        nix::unistd::pipe().unwrap()
    }

    /// A connected socket that takes long to close: nobody reads what was sent.
    fn lingering() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &near, &[0; 65536]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 60 };
        nix::sys::socket::setsockopt(&near, nix::sys::socket::sockopt::Linger, &linger).unwrap();
        (near.into(), far)
    }

    fn tend_until(closers: &Closers, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < end, "{what}");
            closers.tend();
            std::thread::sleep(UNTAKEN_MAX);
        }
    }

    #[test]
    fn a_user_who_blocks_holds_up_nobody_else() {
        let closers = Closers::new().unwrap();
        let (blocking, far): (Vec<_>, Vec<_>) = (0..BUSY_MAX + 4).map(|_| lingering()).unzip();
        blocking.into_iter().for_each(|fd| closers.close(1, fd));
        let (reader, writer) = pipe();
        closers.close(2, writer);
        let is_closed = |fd: &OwnedFd| sd_sys::fd::poll_one(fd.as_raw_fd(), 0, 0).is_ok_and(|e| e != 0);
        tend_until(&closers, "another's is closed", || is_closed(&reader));
        assert_eq!((closers.held(1), closers.held(3)), (BUSY_MAX + 4, 0));
        tend_until(&closers, "all threads that it may have are busy", || closers.pause().is_none());
        assert_eq!(closers.shared.lock().lines[&1].running, BUSY_MAX);
        drop(far);
        tend_until(&closers, "all is closed in the end", || closers.held(1) == 0);
        tend_until(&closers, "threads end", || closers.shared.lock().threads <= IDLE_MAX);
    }
}
