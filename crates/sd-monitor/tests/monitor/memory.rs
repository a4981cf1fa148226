//! Memory for processes that may make no files.

use crate::authority::{MALLORY, become_user, is_root};
use crate::client::Control;
use crate::process::Process;
use crate::server::{Server, until};
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::slab;
use std::os::fd::{AsRawFd, OwnedFd};

#[test]
fn a_process_gets_sealed_memory_before_it_registers() {
    let server = Server::start();
    let control = Control::connect(server.socket());
    for len in [1, sd_shm::public::LEN, slab::LEN] {
        let (reply, fds) = control.ask(Request::Memory { len: len as u64 }, &[]);
        let [memory] = fds.as_slice() else { panic!("{reply:?} with {} descriptors", fds.len()) };
        assert_eq!(reply, Reply::Memory);
        let seals = sd_sys::mem::get_seals(memory.as_raw_fd()).unwrap();
        let both = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        assert_eq!(seals & (both | libc::F_SEAL_SEAL), both);
        let found = std::fs::File::from(memory.try_clone().unwrap()).metadata().unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::size(&found), len as u64);
    }
    for len in [0, slab::LEN as u64 + 1, u64::MAX] {
        assert_eq!(control.refused(Request::Memory { len }, &[]), ErrorCode::Protocol);
    }
}

#[test]
fn who_does_not_read_gets_no_more() {
    const ASKED: usize = 150;
    let server = Server::start();
    let control = Control::connect(server.socket());
    (0..ASKED).for_each(|_| control.tell(Request::Memory { len: 4096 }, &[]));
    until("the monitor has taken them in", || {
        let mut unread = 0;
        // SAFETY: the kernel writes one number.
        unsafe { libc::ioctl(control.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
        unread == 0
    });
    let is_file = |_: &usize| control.receive().is_some_and(|(reply, _)| reply == Reply::Memory);
    let files = (0..ASKED).filter(is_file).count();
    assert!((4..=32).contains(&files), "{files} of {ASKED}");
    assert_eq!(control.ask(Request::Memory { len: 4096 }, &[]).0, Reply::Memory);
}

fn owner(control: &Control) -> u32 {
    let (reply, fds) = control.ask(Request::Memory { len: 4096 }, &[]);
    assert_eq!(reply, Reply::Memory);
    sd_sys::fd::owner(fds.first().map(OwnedFd::as_raw_fd).unwrap()).unwrap()
}

#[test]
fn memory_belongs_to_the_user_that_asked() {
    let server = Server::start();
    assert_eq!(owner(&Control::connect(server.socket())), sd_sys::fd::geteuid());
    if !is_root() {
        return;
    }
    let mut process = Process::fork(|ready| {
        // The socket is root's; the message is not.
        let control = Control::connect(server.socket());
        become_user(MALLORY);
        assert_eq!(owner(&control), MALLORY.as_raw());
        ready();
    });
    process.wait_ready();
}
