//! `sd-bench peer sockmap`: a cgroup whose TCP connections to each other bypass the kernel's TCP, by BPF.
//!
//! It is what a user has today without preloading anything: a program at the cgroup notes every established socket in a
//! map by its addresses; another one, at the map, hands what a socket sends to the socket with the same addresses the
//! other way round, if that is in the map as well. See bpf(2), and the kernel's Documentation/bpf/map_sockmap.rst.
//!
//! ```text
//! holder --ready PATH--> driver      programs whose id is written to PATH/cgroup.procs are in it
//! driver --end of input--> holder    removes the cgroup, which must be empty, and with it the programs
//! ```

use sd_cli::failure::{Context, Failure, Result, last_os_error, print};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// bpf(2): commands, types and places, as in linux/bpf.h.
const MAP_CREATE: u32 = 0;
const PROG_LOAD: u32 = 5;
const PROG_ATTACH: u32 = 8;
const MAP_TYPE_SOCKHASH: u32 = 18;
const PROG_TYPE_SOCK_OPS: u32 = 13;
const PROG_TYPE_SK_MSG: u32 = 16;
const CGROUP_SOCK_OPS: u32 = 3;
const SK_MSG_VERDICT: u32 = 7;
const SOCKETS_MAX: u32 = 65_536;
const LOG_LEN: usize = 16_384;

/// Sets everything up, and takes it down at the end of standard input.
pub(crate) fn hold() -> Result<()> {
    // The end of standard input is the end, also when the driver was killed: the cgroup has to go.
    // SAFETY: integer arguments only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
    let path = make_cgroup()?;
    let attached = attach(&path);
    if attached.is_ok() {
        print(&format!("ready {}\n", path.display()))?;
        super::wait_for_end();
    }
    // Those who were in it may take a moment to end.
    for _ in 0..200 {
        if std::fs::remove_dir(&path).is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    attached.map(drop)
}

/// A fresh directory below the first mounted cgroup2.
fn make_cgroup() -> Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let mount = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields.get(2) == Some(&"cgroup2")).then(|| fields.get(1).map(|path| (*path).to_owned()))?
    });
    let Some(mount) = mount else { return Err(Failure::new("no cgroup2 is mounted")) };
    let path = PathBuf::from(mount).join(format!("sd-bench-{}", std::process::id()));
    std::fs::create_dir(&path).context(path.display())?;
    Ok(path)
}

/// The map and both programs; they live as long as the cgroup and the descriptors.
fn attach(cgroup: &std::path::Path) -> Result<[OwnedFd; 3]> {
    let key_len = 16;
    let map = bpf(MAP_CREATE, &mut [words(MAP_TYPE_SOCKHASH, key_len), words(4, SOCKETS_MAX)])
        .context("a map of sockets")?;
    let note = load(PROG_TYPE_SOCK_OPS, CGROUP_SOCK_OPS, &note_established(map.as_raw_fd()))?;
    let hand_over = load(PROG_TYPE_SK_MSG, SK_MSG_VERDICT, &hand_over(map.as_raw_fd()))?;
    let folder = File::open(cgroup).context(cgroup.display())?;
    attach_to(map.as_raw_fd(), &hand_over, SK_MSG_VERDICT)?;
    attach_to(folder.as_raw_fd(), &note, CGROUP_SOCK_OPS)?;
    Ok([map, note, hand_over])
}

fn load(kind: u32, place: u32, program: &[u64]) -> Result<OwnedFd> {
    let licence = c"Dual MIT/GPL";
    let mut log = vec![0u8; LOG_LEN];
    let (code, text) = (program.as_ptr() as u64, licence.as_ptr() as u64);
    let mut attributes = [0u64; 9];
    attributes[..5].copy_from_slice(&[
        words(kind, program.len() as u32),
        code,
        text,
        words(1, LOG_LEN as u32),
        log.as_mut_ptr() as u64,
    ]);
    // After version, flags and a name of 16 bytes: an interface, and where the program will be attached.
    attributes[8] = words(0, place);
    bpf(PROG_LOAD, &mut attributes).map_err(|error| {
        let said = String::from_utf8_lossy(&log).trim_matches('\0').trim().replace('\n', "; ");
        Failure::new(format!("a BPF program: {error} {said}"))
    })
}

fn attach_to(target: i32, program: &OwnedFd, place: u32) -> Result<()> {
    let attributes = &mut [words(target as u32, program.as_raw_fd() as u32), words(place, 0)];
    // The result of this command is no descriptor.
    syscall(PROG_ATTACH, attributes).context("attaching a BPF program").map(drop)
}

/// Two 32-bit fields of the attributes, in the order of memory.
fn words(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

fn bpf(command: u32, attributes: &mut [u64]) -> std::io::Result<OwnedFd> {
    let fd = syscall(command, attributes)?;
    // SAFETY: a fresh descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn syscall(command: u32, attributes: &mut [u64]) -> std::io::Result<i32> {
    let len = size_of_val(attributes);
    // SAFETY: the kernel reads `len` bytes, and what they point to, which outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), len) };
    if done < 0 { Err(last_os_error()) } else { Ok(done as i32) }
}

// The instructions: code | destination << 8 | source << 12 | offset << 16 | immediate << 32.

const fn op(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    code as u64
        | (to as u64) << 8
        | (from as u64) << 12
        | (offset as u16 as u64) << 16
        | (value as u32 as u64) << 32
}

/// A 32-bit word of the context, which r6 holds.
const fn load_word(to: u8, offset: i16) -> u64 {
    op(0x61, to, 6, offset, 0)
}

/// To the stack.
const fn store_word(offset: i16, from: u8) -> u64 {
    op(0x63, 10, from, offset, 0)
}

const fn set(to: u8, value: i32) -> u64 {
    op(0xb7, to, 0, 0, value)
}

const fn copy(to: u8, from: u8) -> u64 {
    op(0xbf, to, from, 0, 0)
}

/// Network order to the host's, 32 bits.
const fn from_network(register: u8) -> u64 {
    op(0xdc, register, 0, 0, 32)
}

const fn call(helper: i32) -> u64 {
    op(0x85, 0, 0, 0, helper)
}

const EXIT: u64 = 0x95;
/// Where the key lies on the stack: own address, peer's address, own port, peer's port.
const KEY: i16 = -16;

/// Arguments for the helpers on maps of sockets: context, map, key, flags.
fn arguments(map: i32, flags: i32) -> [u64; 6] {
    let pseudo_map_fd = 1;
    [
        copy(1, 6),
        op(0x18, 2, pseudo_map_fd, 0, map),
        0,
        copy(3, 10),
        op(0x07, 3, 0, 0, i32::from(KEY)),
        set(4, flags),
    ]
}

/// At the cgroup: an IPv4 connection that is established goes into the map. Context: struct bpf_sock_ops.
fn note_established(map: i32) -> Vec<u64> {
    const SOCK_HASH_UPDATE: i32 = 70;
    let mut code = vec![
        copy(6, 1),
        load_word(2, 0),
        // BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB and PASSIVE; then the family. Anything else: to the end.
        op(0x15, 2, 0, 1, 4),
        op(0x55, 2, 0, 18, 5),
        load_word(2, 20),
        op(0x55, 2, 0, 16, libc::AF_INET),
        load_word(2, 28),
        store_word(KEY, 2),
        load_word(2, 24),
        store_word(KEY + 4, 2),
        load_word(2, 68),
        store_word(KEY + 8, 2),
        load_word(2, 64),
        from_network(2),
        store_word(KEY + 12, 2),
    ];
    code.extend(arguments(map, 0));
    code.extend([call(SOCK_HASH_UPDATE), set(0, 1), EXIT]);
    code
}

/// At the map: what is sent goes to the input of the socket at the other end. Context: struct sk_msg_md.
fn hand_over(map: i32) -> Vec<u64> {
    const MSG_REDIRECT_HASH: i32 = 71;
    const TO_INPUT: i32 = 1;
    let mut code = vec![
        copy(6, 1),
        load_word(2, 20),
        store_word(KEY, 2),
        load_word(2, 24),
        store_word(KEY + 4, 2),
        load_word(2, 60),
        from_network(2),
        store_word(KEY + 8, 2),
        load_word(2, 64),
        store_word(KEY + 12, 2),
    ];
    code.extend(arguments(map, TO_INPUT));
    // Without such a socket it goes on through TCP.
    code.extend([call(MSG_REDIRECT_HASH), set(0, 1), EXIT]);
    code
}
