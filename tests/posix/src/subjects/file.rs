//! Sockets where a file could be: stdio, sendfile, splice, and calls that a socket refuses.

use std::ffi::{CStr, CString};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("file/sendfile", sendfile_whole),
    solo("file/sendfile_offset", sendfile_offset),
    solo("file/sendfile_large", sendfile_large),
    solo("file/sendfile_errors", sendfile_errors),
    solo("file/sendfile_nonblocking", sendfile_nonblocking),
    solo("file/sendfile_after_peer_closed", sendfile_after_peer_closed),
    solo("file/splice_after_peer_closed", splice_after_peer_closed),
    solo("file/splice_pipe_to_socket", splice_pipe_to_socket),
    solo("file/splice_socket_to_pipe", splice_socket_to_pipe),
    solo("file/splice_errors", splice_errors),
    solo("file/splice_ends", splice_ends),
    solo("file/splice_proxy", splice_proxy),
    solo("file/without_a_mapping", without_a_mapping),
    solo("file/seek", seek),
    solo("file/positioned", positioned),
    solo("file/not_for_sockets", not_for_sockets),
    solo("file/stdio_line", stdio_line),
    solo("file/stdio_bulk", stdio_bulk),
    solo("file/dprintf", dprintf_line),
    solo("file/copy_file_range", copy_range),
    solo("file/preadv2", positioned_vector),
];

fn sendfile_whole() {
    let pair = connected();
    let file = temporary_file(b"the content of a file");
    show("sendfile", sendfile(pair.client, file, 100));
    show("sendfile at the end", sendfile(pair.client, file, 100));
    say!("position {}", lseek(file, 0, libc::SEEK_CUR));
    await_bytes(pair.server, 21);
    show_recv("server", pair.server, 64, 0);
}

fn sendfile_offset() {
    let pair = connected();
    let file = temporary_file(b"0123456789abcdef");
    let mut offset = 4;
    show("sendfile 5 at 4", sendfile_at(pair.client, file, &mut offset, 5));
    say!("offset {offset}, position {}", lseek(file, 0, libc::SEEK_CUR));
    show("sendfile 100 at the offset", sendfile_at(pair.client, file, &mut offset, 100));
    say!("offset {offset}");
    show("sendfile at the end", sendfile_at(pair.client, file, &mut offset, 100));
    offset = 1000;
    show("sendfile beyond the end", sendfile_at(pair.client, file, &mut offset, 100));
    offset = -1;
    show("sendfile at -1", sendfile_at(pair.client, file, &mut offset, 100));
    show("sendfile of nothing", sendfile(pair.client, file, 0));
    await_bytes(pair.server, 12);
    show_recv("server", pair.server, 64, 0);
}

fn sendfile_large() {
    const TOTAL: usize = 5_000_003;
    let pair = connected();
    let file = temporary_file(&crate::bulk::pattern(0, TOTAL));
    let client = pair.client;
    let writer = std::thread::spawn(move || {
        let mut offset = 0;
        while (offset as usize) < TOTAL {
            if !sendfile_at(client, file, &mut offset, 700_001).ok() {
                break;
            }
        }
        close(client);
        offset
    });
    crate::bulk::receive_pattern(pair.server, u64::MAX, &[65_536]).show("server");
    say!("offset {}", writer.join().unwrap_or(-1));
}

fn sendfile_errors() {
    let pair = connected();
    let file = temporary_file(b"content");
    show("to -1", sendfile(-1, file, 4));
    show("from -1", sendfile(pair.client, -1, 4));
    show("from a socket", sendfile(pair.client, pair.server, 4));
    let (read_end, write_end) = pipe(0);
    write(write_end, b"pipe");
    show("from a pipe", sendfile(pair.client, read_end, 4));
    show("to a fresh socket", sendfile(tcp(), file, 4));
    say!("position {}", lseek(file, 0, libc::SEEK_CUR));
    show("from a write-only file", {
        let null = open_path(c"/dev/null", libc::O_WRONLY).fd();
        sendfile(pair.client, null, 4)
    });
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    shutdown(pair.client, libc::SHUT_WR);
    show("after SHUT_WR", sendfile(pair.client, file, 4));
    show_taken(libc::SIGPIPE);
}

fn sendfile_nonblocking() {
    let pair = connected();
    set_nonblocking(pair.client, true);
    let file = temporary_file(&crate::bulk::pattern(0, 32 << 20));
    let mut offset = 0;
    let result = sendfile_at(pair.client, file, &mut offset, 32 << 20);
    say!("a part was taken: {}", (1..32 << 20).contains(&result.count()));
    say!("offset agrees: {}", offset == result.value);
    close(pair.client);
    let tally = crate::bulk::receive_pattern(pair.server, u64::MAX, &[65_536]);
    say!("the part arrived: {}, intact {}", tally.bytes as i64 == result.value, tally.intact);
}

/// As with send(2): the first is taken, and draws a reset.
fn sendfile_after_peer_closed() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    let file = temporary_file(b"0123456789");
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show("first", sendfile(pair.client, file, 4));
    await_events(pair.client, libc::POLLHUP);
    show("second", sendfile(pair.client, file, 4));
    show_taken(libc::SIGPIPE);
    show_read("the rest of the file", file, 16);
}

fn splice_after_peer_closed() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    write(write_end, b"through the pipe");
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show("first", splice(read_end, pair.client, 7, 0));
    await_events(pair.client, libc::POLLHUP);
    show("second", splice(read_end, pair.client, 7, 0));
    show_taken(libc::SIGPIPE);
}

fn splice_pipe_to_socket() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    write(write_end, b"through the pipe");
    show("splice 7", splice(read_end, pair.client, 7, 0));
    show("splice the rest", splice(read_end, pair.client, 100, libc::SPLICE_F_MOVE));
    show("splice of an empty pipe", splice(read_end, pair.client, 100, libc::SPLICE_F_NONBLOCK));
    close(write_end);
    show("splice at the end", splice(read_end, pair.client, 100, 0));
    await_bytes(pair.server, 16);
    show_recv("server", pair.server, 64, 0);
}

fn splice_socket_to_pipe() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    set_nonblocking(pair.server, true);
    show("nothing there", splice(pair.server, write_end, 100, 0));
    set_nonblocking(pair.server, false);
    send(pair.client, b"into the pipe", 0);
    await_bytes(pair.server, 13);
    show("splice 4", splice(pair.server, write_end, 4, 0));
    show("splice the rest", splice(pair.server, write_end, 100, 0));
    show_read("pipe", read_end, 64);
    shutdown(pair.client, libc::SHUT_WR);
    await_readable(pair.server);
    show("splice at the end", splice(pair.server, write_end, 100, 0));
}

fn splice_errors() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    show("socket to socket", splice(pair.client, pair.server, 1, 0));
    show("from -1", splice(-1, pair.client, 1, 0));
    show("to -1", splice(read_end, -1, 1, 0));
    show("of nothing", splice(read_end, pair.client, 0, 0));
    write(write_end, b"x");
    show("to a fresh socket", splice(read_end, tcp(), 1, 0));
    set_nonblocking(pair.server, true);
    show("from an empty non-blocking socket", splice(pair.server, write_end, 1, 0));
    show("unknown flags", splice(read_end, pair.client, 1, 1 << 20));
}

/// What HAProxy does: socket to pipe to socket.
fn splice_proxy() {
    const TOTAL: u64 = 2_000_000;
    let (front, back) = (connected(), connected());
    let (client, server) = (front.client, back.server);
    let writer = std::thread::spawn(move || {
        crate::bulk::send_pattern(client, TOTAL, &[50_000]);
        shutdown(client, libc::SHUT_WR);
    });
    let reader = std::thread::spawn(move || crate::bulk::receive_pattern(server, u64::MAX, &[65_536]));
    let (read_end, write_end) = pipe(0);
    let mut moved = 0;
    loop {
        let taken = splice(front.server, write_end, 65_536, libc::SPLICE_F_MOVE).count();
        if taken == 0 {
            break;
        }
        let mut left = taken;
        while left > 0 {
            let given =
                splice(read_end, back.client, left, libc::SPLICE_F_MOVE | libc::SPLICE_F_MORE).count();
            if given == 0 {
                break;
            }
            left -= given;
        }
        moved += taken;
    }
    close(back.client);
    let _ = writer.join();
    say!("moved {moved}");
    reader.join().expect("reader").show("server");
}

/// A process that has as many mappings as it may have: these calls need none, also while another thread is in one.
fn without_a_mapping() {
    const PAGE: usize = 4096;
    const LEN: usize = PAGE * 200_000;
    let pair = connected();
    let file = temporary_file(&[7; 3000]);
    let (read_end, write_end) = pipe(0);
    let other = connected();
    let waiting = std::thread::spawn(move || splice(other.server, pipe(0).1, 100, 0).value);
    sleep(100);
    let none = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let map = |len: usize, kind: i32| call!(libc::mmap(std::ptr::null_mut(), len, 0, none | kind, -1, 0));
    let at = map(LEN, libc::MAP_PRIVATE).value as usize;
    let split = |page: usize| call!(libc::mprotect((at + page * PAGE) as *mut _, PAGE, libc::PROT_READ));
    let is_split = (0..LEN / PAGE).step_by(2).any(|page| split(page).errno == libc::ENOMEM);
    // What is split may be one fewer than what is mapped.
    let is_full = is_split && (0..8).any(|_| map(PAGE, libc::MAP_SHARED).errno == libc::ENOMEM);
    let found = [
        // Beyond the end of the file, and there.
        sendfile(pair.client, file, 5000).value,
        sendfile(pair.client, file, 5000).value,
        splice(pair.server, write_end, 3000, 0).value,
        splice(read_end, pair.client, 3000, 0).value,
    ];
    call!(libc::munmap(at as *mut _, LEN));
    send(other.client, b"more", 0);
    say!("the other's {:?}", waiting.join().ok());
    say!(
        "full {is_full}, {} and {} sent, {} and {} moved",
        found[0],
        found[1],
        found[2] > 0,
        found[2] == found[3]
    );
}

fn seek() {
    let pair = connected();
    show("lseek SET", lseek(pair.client, 0, libc::SEEK_SET));
    show("lseek CUR", lseek(pair.client, 0, libc::SEEK_CUR));
    show("lseek END", lseek(pair.client, 0, libc::SEEK_END));
    show("lseek of a fresh socket", lseek(tcp(), 0, libc::SEEK_CUR));
    show("lseek of a listener", lseek(listener().0, 0, libc::SEEK_CUR));
    show("lseek, nonsense", lseek(pair.client, 0, 99));
}

fn positioned() {
    let pair = connected();
    send(pair.client, b"data", 0);
    await_readable(pair.server);
    show("pread", pread(pair.server, &mut [0; 4], 0));
    show("pwrite", pwrite(pair.client, b"data", 0));
    show("pread at -1", pread(pair.server, &mut [0; 4], -1));
    show("pwrite of nothing", pwrite(pair.client, b"", 0));
    show("pread of -1", pread(-1, &mut [0; 4], 0));
    show_recv("untouched", pair.server, 8, 0);
}

fn not_for_sockets() {
    let pair = connected();
    show("fsync", fsync(pair.client));
    show("fdatasync", call!(libc::fdatasync(pair.client)));
    show("ftruncate", ftruncate(pair.client, 0));
    let mapped = mmap(pair.client);
    say!("mmap: {}", if mapped.ok() { "an address".to_owned() } else { mapped.to_string() });
    say!("posix_fallocate: {}", errno_name(call!(libc::posix_fallocate(pair.client, 0, 1)).fd()));
    say!("posix_fadvise: {}", errno_name(call!(libc::posix_fadvise(pair.client, 0, 0, 0)).fd()));
    show("fchdir", call!(libc::fchdir(pair.client)));
    show("flock", call!(libc::flock(pair.client, libc::LOCK_EX | libc::LOCK_NB)));
    show("isatty", isatty(pair.client));
    show("fpathconf", call!(libc::fpathconf(pair.client, libc::_PC_PIPE_BUF)));
    show("readahead", call!(libc::readahead(pair.client, 0, 10)));
    show("syncfs", call!(libc::syncfs(pair.client)));
    show_send("still fine", pair.client, b"x", 0);
}

fn open_stream(fd: i32, mode: &CStr) -> *mut libc::FILE {
    // SAFETY: the mode is a C string; a null result is checked.
    let stream = unsafe { libc::fdopen(fd, mode.as_ptr()) };
    if stream.is_null() {
        give_up("fdopen failed");
    }
    stream
}

/// What programs written in the style of the 1980s do: fprintf to one FILE, fgets from another.
fn stdio_line() {
    let pair = connected();
    let output = open_stream(pair.client, c"w");
    let input = open_stream(dup(pair.server).fd(), c"r");
    show("fprintf", call!(libc::fprintf(output, c"%s %d\nsecond\n".as_ptr(), c"line".as_ptr(), 42)));
    show("nothing before fflush", Ret { value: i64::from(fionread(pair.server)), errno: 0 });
    show("fflush", call!(libc::fflush(output)));
    for _ in 0..2 {
        let mut line = [0u8; 64];
        call!(libc::fgets(line.as_mut_ptr().cast(), 64, input));
        let line = CStr::from_bytes_until_nul(&line).expect("a C string");
        say!("fgets {}", text(line.to_bytes()));
    }
    show("fputs", call!(libc::fputs(c"last".as_ptr(), output)));
    show("fclose", call!(libc::fclose(output)));
    say!("descriptor {}", descriptor_flags(pair.client));
    let mut rest = [0u8; 64];
    show("fread", call!(libc::fread(rest.as_mut_ptr().cast(), 1, 64, input)));
    say!("{}", text(&rest[..4]));
    show("feof is set", Ret { value: i64::from(call!(libc::feof(input)).value != 0), errno: 0 });
}

fn stdio_bulk() {
    let pair = connected();
    let client = pair.client;
    let writer = std::thread::spawn(move || {
        let output = open_stream(client, c"w");
        for number in 0..20_000 {
            let line = CString::new(format!("{number}\n")).expect("no NUL");
            call!(libc::fputs(line.as_ptr(), output));
        }
        call!(libc::fclose(output));
    });
    let input = open_stream(pair.server, c"r");
    let (mut lines, mut sum) = (0, 0u64);
    loop {
        let mut line = [0u8; 32];
        if call!(libc::fgets(line.as_mut_ptr().cast(), 32, input)).value == 0 {
            break;
        }
        let line = CStr::from_bytes_until_nul(&line).expect("a C string").to_string_lossy();
        sum += line.trim().parse::<u64>().unwrap_or(1 << 40);
        lines += 1;
    }
    let _ = writer.join();
    say!("{lines} lines, sum {sum}");
}

unsafe extern "C" {
    /// Not in the libc crate.
    fn dprintf(fd: i32, format: *const libc::c_char, ...) -> i32;
}

fn dprintf_line() {
    let pair = connected();
    show("dprintf", call!(dprintf(pair.client, c"%s=%d\n".as_ptr(), c"answer".as_ptr(), 42)));
    await_readable(pair.server);
    show_recv("server", pair.server, 64, 0);
}

fn copy_range() {
    let pair = connected();
    let file = temporary_file(b"content");
    let null = std::ptr::null_mut();
    show("file to socket", call!(libc::copy_file_range(file, null, pair.client, null, 4, 0)));
    show("socket to file", call!(libc::copy_file_range(pair.client, null, file, null, 4, 0)));
    show("tee", call!(libc::tee(pair.client, pair.server, 4, 0)));
    let byte = [b'x'];
    let part = libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
    show("vmsplice", call!(libc::vmsplice(pair.client, &raw const part, 1, 0)));
}

fn positioned_vector() {
    let pair = connected();
    let mut byte = [0u8; 8];
    let part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 8 };
    show("pwritev at 0", call!(libc::pwritev(pair.client, &raw const part, 1, 0)));
    show("preadv at 0", call!(libc::preadv(pair.server, &raw const part, 1, 0)));
    show("pwritev2 at -1", call!(libc::pwritev2(pair.client, &raw const part, 1, -1, 0)));
    await_bytes(pair.server, 8);
    show("preadv2 at -1", call!(libc::preadv2(pair.server, &raw const part, 1, -1, 0)));
    show("preadv2 RWF_NOWAIT", call!(libc::preadv2(pair.server, &raw const part, 1, -1, libc::RWF_NOWAIT)));
}

/// A pipe at its end is looked at before the socket; a socket has no offset.
fn splice_ends() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    let mut offset = 0;
    let null = std::ptr::null_mut();
    write(write_end, b"data");
    show("offset of a socket", call!(libc::splice(read_end, null, pair.client, &raw mut offset, 4, 0)));
    show("offset of a pipe", call!(libc::splice(read_end, &raw mut offset, pair.client, null, 4, 0)));
    show("offset of a source", call!(libc::splice(pair.server, &raw mut offset, write_end, null, 4, 0)));
    show("to a read end", splice(pair.server, read_end, 4, 0));
    show("from a write end", splice(write_end, pair.client, 4, 0));
    show("from a file", splice(temporary_file(b"file"), pair.client, 4, 0));
    show("to a file", splice(pair.server, temporary_file(b""), 4, 0));
    show("with every flag", splice(read_end, pair.client, 4, 15));
    shutdown(pair.client, libc::SHUT_WR);
    close(write_end);
    show("nothing to a socket that was shut down", splice(read_end, pair.client, 4, 0));
    let (read_end, write_end) = pipe(libc::O_NONBLOCK);
    show("an empty non-blocking pipe", splice(read_end, pair.server, 4, 0));
    crate::bulk::fill(pair.server, 0);
    set_nonblocking(pair.server, true);
    write(write_end, b"data");
    show("a full non-blocking socket", splice(read_end, pair.server, 4, 0));
    say!("still in the pipe {}", fionread(read_end));
}
