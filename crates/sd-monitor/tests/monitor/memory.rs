//! Memory for processes that may make no files.

use crate::client::Control;
use crate::server::Server;
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::slab;
use std::os::fd::AsRawFd;

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
