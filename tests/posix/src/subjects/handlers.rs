//! Handlers of signals: what is told of them, and what they may call whatever they interrupt (signal-safety(7)).

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("handlers/told_by_sigaction", told_by_sigaction),
    solo("handlers/told_by_signal", told_by_signal),
    solo("handlers/by_signal", by_signal),
    solo("handlers/runs_once", runs_once),
    solo("handlers/information", information),
    solo("handlers/in_turn", in_turn),
    solo("handlers/mask", mask),
    solo("handlers/any_call", any_call),
    solo("handlers/threads_send", threads_send),
    solo("handlers/forks", forks),
    solo("handlers/forked_in_traffic", forked_in_traffic),
];

/// Rounds of a loop that signals interrupt every 100 us.
const ROUNDS: u32 = 10_000;

extern "C" fn nothing(_: i32) {}

extern "C" fn with_info(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

fn name(handler: usize) -> &'static str {
    match handler {
        libc::SIG_DFL => "default",
        libc::SIG_IGN => "ignored",
        libc::SIG_ERR => "error",
        2 => "held",
        h if h == nothing as *const () as usize => "nothing",
        h if h == with_info as *const () as usize => "with_info",
        _ => "other",
    }
}

/// All-zero bytes, a handler and flags.
fn action(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

/// sigaction(2), and what was there before.
fn exchange(number: i32, new: Option<libc::sigaction>) {
    let mut old = action(77, 77);
    let given = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let result = call!(libc::sigaction(number, given, &raw mut old));
    if result.ok() {
        let member = call!(libc::sigismember(&raw const old.sa_mask, libc::SIGUSR2)).value;
        // The restorer is libc's own business.
        let flags = old.sa_flags & !0x0400_0000;
        say!("before: {}, flags {flags:#x}, SIGUSR2 {member}", name(old.sa_sigaction));
    } else {
        show("sigaction", result);
    }
}

fn told_by_sigaction() {
    let _pair = connected();
    let plain = nothing as *const () as usize;
    let informed = with_info as *const () as usize;
    exchange(libc::SIGUSR1, None);
    let mut masking = action(plain, libc::SA_RESTART);
    masking.sa_mask = signal_set(&[libc::SIGUSR2]);
    exchange(libc::SIGUSR1, Some(masking));
    exchange(libc::SIGUSR1, None);
    exchange(libc::SIGUSR1, Some(action(informed, libc::SA_SIGINFO | libc::SA_NODEFER)));
    exchange(libc::SIGUSR1, Some(action(libc::SIG_IGN, 0)));
    exchange(libc::SIGUSR1, Some(action(plain, libc::SA_ONSTACK)));
    exchange(libc::SIGUSR1, Some(action(libc::SIG_DFL, 0)));
    exchange(libc::SIGUSR1, None);
    for wrong in [libc::SIGKILL, libc::SIGSTOP, 0, -1, 65, 1000] {
        exchange(wrong, Some(action(plain, 0)));
    }
    exchange(libc::SIGKILL, None);
    exchange(64, Some(action(plain, 0)));
    exchange(64, None);
    let mut both = action(informed, libc::SA_SIGINFO);
    show("in place", call!(libc::sigaction(64, &raw const both, &raw mut both)));
    say!("it holds {}", name(both.sa_sigaction));
    exchange(64, None);
}

type Setter = unsafe extern "C" fn(i32, usize) -> usize;

unsafe extern "C" {
    fn bsd_signal(number: i32, handler: usize) -> usize;
    fn ssignal(number: i32, handler: usize) -> usize;
    fn sysv_signal(number: i32, handler: usize) -> usize;
    fn __sysv_signal(number: i32, handler: usize) -> usize;
    fn sigset(number: i32, handler: usize) -> usize;
    fn siginterrupt(number: i32, flag: i32) -> i32;
    fn __sigaction(number: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32;
}

const SETTERS: [(&str, Setter); 6] = [
    ("signal", libc::signal),
    ("bsd_signal", bsd_signal),
    ("ssignal", ssignal),
    ("sysv_signal", sysv_signal),
    ("__sysv_signal", __sysv_signal),
    ("sigset", sigset),
];

fn told_by_signal() {
    let _pair = connected();
    let plain = nothing as *const () as usize;
    for (label, set) in SETTERS {
        // SAFETY: the handlers are functions of this program, or the constants.
        let set = |number, handler| name(unsafe { set(number, handler) });
        say!("{label}: {}", set(libc::SIGUSR2, plain));
        exchange(libc::SIGUSR2, None);
        say!("then {}, {}", set(libc::SIGUSR2, libc::SIG_IGN), set(libc::SIGUSR2, plain));
        say!("last {}, SIGKILL {}", set(libc::SIGUSR2, libc::SIG_DFL), set(libc::SIGKILL, plain));
    }
    // SAFETY: as above.
    let hold = |handler| name(unsafe { sigset(libc::SIGUSR2, handler) });
    say!("sigset: {}, {}, {}", hold(plain), hold(2), hold(libc::SIG_DFL));
    call!(siginterrupt(libc::SIGUSR2, 1));
    // SAFETY: as above.
    say!("interrupting: {}", name(unsafe { libc::signal(libc::SIGUSR2, plain) }));
    exchange(libc::SIGUSR2, None);
    call!(siginterrupt(libc::SIGUSR2, 0));
    let mut old = action(77, 0);
    show("__sigaction", call!(__sigaction(libc::SIGUSR2, std::ptr::null(), &raw mut old)));
    say!("{}, restarts {}", name(old.sa_sigaction), old.sa_flags & libc::SA_RESTART != 0);
}

/// Sends and receives eight bytes on a connection in each of many rounds: how many rounds failed.
fn traffic(pair: &Connected, rounds: u32, mut each: impl FnMut(u32)) -> u32 {
    (0..rounds)
        .filter(|round| {
            each(*round);
            let sent = send(pair.client, b"12345678", 0).value;
            sent != 8 || recv(pair.server, &mut [0; 8], 0).value != 8
        })
        .count() as u32
}

/// A handler of each function's own runs, in traffic, and is told of.
fn by_signal() {
    let pair = connected();
    let counts = counter();
    for (label, set) in SETTERS {
        taken(libc::SIGWINCH);
        // SAFETY: the handler is a function of this program.
        unsafe { set(libc::SIGWINCH, counts) };
        let failed = traffic(&pair, 20, |_| ());
        call!(libc::raise(libc::SIGWINCH));
        say!("{label}: failed {failed}, runs {}", taken(libc::SIGWINCH));
        // For those that reset.
        // SAFETY: as above.
        unsafe { set(libc::SIGWINCH, libc::SIG_DFL) };
    }
    let plain = action(counts, 0);
    call!(__sigaction(libc::SIGWINCH, &raw const plain, std::ptr::null_mut()));
    call!(libc::raise(libc::SIGWINCH));
    say!("__sigaction: runs {}", taken(libc::SIGWINCH));
}

/// SA_RESETHAND: the next one finds the default, which for SIGURG is nothing.
fn runs_once() {
    let pair = connected();
    let me = getpid();
    let other = fork_child(|| {
        loop {
            kill(me, libc::SIGURG);
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    });
    let (mut runs, mut more, mut reset) = (0, 0, 0);
    for _ in 0..200 {
        count_signal(libc::SIGURG, libc::SA_RESETHAND | libc::SA_RESTART);
        traffic(&pair, 200, |_| ());
        let mut count = taken(libc::SIGURG);
        while count == 0 {
            sleep(1);
            count += taken(libc::SIGURG);
        }
        let mut old = action(77, 0);
        call!(libc::sigaction(libc::SIGURG, std::ptr::null(), &raw mut old));
        reset += u32::from(old.sa_sigaction == libc::SIG_DFL);
        match count + taken(libc::SIGURG) {
            1 => runs += 1,
            n => more += n,
        }
    }
    kill(other, libc::SIGKILL);
    wait_child(other);
    say!("once {runs}, more {more}, reset {reset}");
}

static LAST: AtomicI32 = AtomicI32::new(-1);
static WRONG: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_order(number: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's siginfo, of sigqueue.
    let (code, value, pid) =
        unsafe { ((*info).si_code, (*info).si_value().sival_ptr as usize as i32, (*info).si_pid()) };
    let is_right = number == libc::SIGRTMIN()
        && code == libc::SI_QUEUE
        && pid == getpid()
        && value == LAST.load(Ordering::Relaxed) + 1;
    WRONG.fetch_add(u32::from(!is_right), Ordering::Relaxed);
    LAST.store(value, Ordering::Relaxed);
}

/// A child queues signals with values, in order, while this process sends and receives.
fn information() {
    let pair = connected();
    let mut queued = action(in_order as *const () as usize, libc::SA_SIGINFO | libc::SA_RESTART);
    queued.sa_mask = signal_set(&[libc::SIGUSR1]);
    call!(libc::sigaction(libc::SIGRTMIN(), &raw const queued, std::ptr::null_mut()));
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    every(libc::SIGUSR1, 70);
    let me = getpid();
    let queue = |value: u32| {
        let value = libc::sigval { sival_ptr: value as usize as *mut libc::c_void };
        call!(libc::sigqueue(me, libc::SIGRTMIN(), value));
    };
    let failed = traffic(&pair, ROUNDS, queue);
    block_signal(libc::SIGUSR1, true);
    say!("failed {failed}, wrong {}, last {}", WRONG.load(Ordering::Relaxed), LAST.load(Ordering::Relaxed));
    say!("the other came: {}", taken(libc::SIGUSR1) > 0);
}

/// Every round raises a signal by itself: when raise returns the handler has run.
fn in_turn() {
    let pair = connected();
    count_signal(libc::SIGUSR1, 0);
    count_signal(libc::SIGUSR2, 0);
    every(libc::SIGUSR2, 50);
    let mut late = 0;
    let failed = traffic(&pair, ROUNDS, |_| {
        call!(libc::raise(libc::SIGUSR1));
        late += u32::from(taken(libc::SIGUSR1) != 1);
    });
    block_signal(libc::SIGUSR2, true);
    say!("failed {failed}, late {late}");
}

static MASKED: AtomicU32 = AtomicU32::new(0);

extern "C" fn looks_at_mask(number: i32) {
    // SAFETY: all-zero bytes are an empty set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    call!(libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set));
    let has = |number| call!(libc::sigismember(&raw const set, number)).value == 1;
    let is_right = has(number) && has(libc::SIGUSR2) && !has(libc::SIGTERM) && !has(libc::SIGRTMAX());
    MASKED.fetch_add(u32::from(!is_right), Ordering::Relaxed);
}

/// What is blocked inside a handler, and before and after one.
fn mask() {
    let pair = connected();
    let mut masking = action(looks_at_mask as *const () as usize, libc::SA_RESTART);
    masking.sa_mask = signal_set(&[libc::SIGUSR2]);
    call!(libc::sigaction(libc::SIGUSR1, &raw const masking, std::ptr::null_mut()));
    every(libc::SIGUSR1, 50);
    let mut wrong = 0;
    let failed = traffic(&pair, ROUNDS, |_| {
        // SAFETY: all-zero bytes are an empty set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        call!(libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set));
        wrong += (1..=64).filter(|n| call!(libc::sigismember(&raw const set, *n)).value == 1).count();
    });
    block_signal(libc::SIGUSR1, true);
    say!("failed {failed}, wrong inside {}, outside {wrong}", MASKED.load(Ordering::Relaxed));
}

static LISTENER: AtomicI32 = AtomicI32::new(-1);
static DONE: AtomicU32 = AtomicU32::new(0);
static BROKEN: AtomicU32 = AtomicU32::new(0);

/// Connects, accepts, sends, waits for events, receives, sets options, closes: how many steps went wrong.
pub(super) fn whole_life(listening: i32, addr: &Addr) -> u32 {
    let client = tcp();
    let mut wrong = u32::from(!connect(client, addr).ok());
    let server = accept4(listening, libc::SOCK_NONBLOCK).fd();
    let ep = epoll_create1(0).fd();
    epoll_add(ep, server, libc::EPOLLIN, 1);
    wrong += u32::from(send(client, b"byte", 0).value != 4);
    wrong += u32::from(poll_one(server, libc::POLLIN, 1000).0.value != 1);
    // No list of the heap's: a handler may have interrupted malloc.
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    wrong += u32::from(epoll_wait_raw(ep, &raw mut event, 1, 1000).value != 1);
    wrong += u32::from(select_read(server + 1, Some(&mut FdSet::of(&[server])), 1000).value != 1);
    wrong += u32::from(recv(server, &mut [0; 8], 0).value != 4);
    let copy = dup(server).fd();
    wrong += u32::from(!set_nonblocking(copy, false).ok());
    wrong += u32::from(getpeername(copy).1.port() != getsockname(client).1.port());
    for fd in [ep, client, server, copy] {
        wrong += u32::from(!close(fd).ok());
    }
    wrong
}

extern "C" fn lives(_: i32) {
    let listening = LISTENER.load(Ordering::Relaxed);
    BROKEN.fetch_add(whole_life(listening, &getsockname(listening).1), Ordering::Relaxed);
    DONE.fetch_add(1, Ordering::Relaxed);
}

/// A handler makes, accepts, watches and closes connections, whatever call of the same kind it interrupts.
fn any_call() {
    let (mine, addr) = listener();
    LISTENER.store(listener().0, Ordering::Relaxed);
    handle(libc::SIGUSR1, lives, libc::SA_RESTART);
    every(libc::SIGUSR1, 5000);
    let mut wrong = 0;
    while DONE.load(Ordering::Relaxed) < 40 {
        wrong += whole_life(mine, &addr);
    }
    block_signal(libc::SIGUSR1, true);
    say!("wrong {wrong}, in handlers {}", BROKEN.load(Ordering::Relaxed));
}

static SOCKET: AtomicI32 = AtomicI32::new(-1);
static SENT: AtomicU32 = AtomicU32::new(0);

fn send_whole(byte: u8) {
    let sent = send(SOCKET.load(Ordering::Relaxed), &[byte; 32], 0).value;
    SENT.fetch_add(u32::from(sent == 32), Ordering::Relaxed);
}

extern "C" fn sends(_: i32) {
    send_whole(b'h');
}

/// Two threads send on one socket, and so do handlers that interrupt them: no message is torn or lost.
fn threads_send() {
    let pair = connected();
    SOCKET.store(pair.client, Ordering::Relaxed);
    let reader = std::thread::spawn(move || {
        block_signal(libc::SIGUSR1, true);
        let (mut whole, mut torn) = (0, 0);
        let mut message = [0; 32];
        while recv(pair.server, &mut message, libc::MSG_WAITALL).value == 32 {
            match message.iter().all(|byte| *byte == message[0]) {
                true => whole += 1,
                false => torn += 1,
            }
        }
        (whole, torn)
    });
    handle(libc::SIGUSR1, sends, libc::SA_RESTART);
    every(libc::SIGUSR1, 100);
    let senders =
        [b'a', b'b'].map(|byte| std::thread::spawn(move || (0..ROUNDS).for_each(|_| send_whole(byte))));
    for sender in senders {
        let _ = sender.join();
    }
    block_signal(libc::SIGUSR1, true);
    shutdown(pair.client, libc::SHUT_WR);
    let (whole, torn) = reader.join().unwrap_or((0, 1));
    say!("torn {torn}, lost {}", SENT.load(Ordering::Relaxed) - whole);
}

static CHILDREN: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicU32 = AtomicU32::new(0);

extern "C" fn makes_child(_: i32) {
    if CHILDREN.fetch_add(1, Ordering::Relaxed) >= 20 {
        return;
    }
    let fd = SOCKET.load(Ordering::Relaxed);
    let pid = fork_child(|| i32::from(send(fd, &[b'c'; 32], 0).value != 32));
    ENDED.fetch_add(u32::from(wait_child(pid) == "exit 0"), Ordering::Relaxed);
}

/// A handler forks; the child sends on the connection whose send or recv was interrupted.
fn forks() {
    let pair = connected();
    SOCKET.store(pair.client, Ordering::Relaxed);
    handle(libc::SIGUSR1, makes_child, libc::SA_RESTART);
    every(libc::SIGUSR1, 500);
    let (mut mine, mut theirs, mut torn) = (0, 0, 0);
    let mut count = |message: [u8; 32]| match message {
        m if m == [b'm'; 32] => mine += 1,
        m if m == [b'c'; 32] => theirs += 1,
        _ => torn += 1,
    };
    while CHILDREN.load(Ordering::Relaxed) < 20 {
        send(pair.client, &[b'm'; 32], 0);
        let mut message = [0; 32];
        while recv(pair.server, &mut message, libc::MSG_DONTWAIT).value > 0 {
            count(message);
        }
    }
    block_signal(libc::SIGUSR1, true);
    let mut message = [0; 32];
    while recv(pair.server, &mut message, libc::MSG_DONTWAIT).value > 0 {
        count(message);
    }
    say!("torn {torn}, some {}, of children {theirs}, ended {}", mine > 0, ENDED.load(Ordering::Relaxed));
}

/// Children forked while signals come have the handlers, and no signal of the parent's.
fn forked_in_traffic() {
    let pair = connected();
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    every(libc::SIGUSR1, 50);
    let mut ends = Vec::new();
    for _ in 0..20 {
        traffic(&pair, 50, |_| ());
        let pid = fork_child(|| {
            taken(libc::SIGUSR1);
            traffic(&pair, 50, |_| ());
            let before = taken(libc::SIGUSR1);
            call!(libc::raise(libc::SIGUSR1));
            (before * 10 + taken(libc::SIGUSR1)) as i32
        });
        ends.push(wait_child(pid));
    }
    block_signal(libc::SIGUSR1, true);
    ends.dedup();
    say!("children: {}", ends.join(", "));
}
