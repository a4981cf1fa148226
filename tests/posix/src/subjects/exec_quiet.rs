//! Programs that can do without the library (ADR 90): they get what they would get anyway.

use std::ffi::{CStr, CString};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("exec/quiet_on_inherited_connection", on_inherited_connection),
    solo("exec/quiet_on_numbered_connection", on_numbered_connection),
    solo("exec/quiet_holds_nothing", holds_nothing),
    solo("exec/quiet_variables", variables),
    solo("exec/quiet_many_variables", many_variables),
    solo("exec/quiet_takes_no_number", takes_no_number),
];

/// In a child: executes a program with these words, of which the first is its path.
fn become_program(words: &[&CStr], environment: &[CString]) -> i32 {
    let pointers = |of: &mut dyn Iterator<Item = *const libc::c_char>| -> Vec<*const libc::c_char> {
        of.chain([std::ptr::null()]).collect()
    };
    let argv = pointers(&mut words.iter().map(|word| word.as_ptr()));
    let environment = pointers(&mut environment.iter().map(|variable| variable.as_ptr()));
    show("execve", call!(libc::execve(argv[0], argv.as_ptr(), environment.as_ptr())));
    127
}

/// The environment of this program, and one more variable.
fn own_and(more: &CStr) -> Vec<CString> {
    let mut all = Vec::new();
    // SAFETY: libc's array, which nobody changes meanwhile.
    unsafe {
        let mut at = super::spawn::environ;
        while !(*at).is_null() {
            all.push(CStr::from_ptr(*at).to_owned());
            at = at.add(1);
        }
    }
    all.push(more.to_owned());
    all
}

/// What a program writes, and how it ends.
fn output_of(words: &[&CStr], environment: &[CString]) -> (String, String) {
    let (reads, writes) = pipe(0);
    let child = fork_child(|| {
        dup2(writes, 1);
        become_program(words, environment)
    });
    close(writes);
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match read(reads, &mut buffer).count() {
            0 => break,
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
    close(reads);
    (text(&all), wait_child(child))
}

fn on_inherited_connection() {
    let pair = connected();
    let child = fork_child(|| {
        take_as_streams(&pair);
        become_program(&[c"/bin/cat"], &own_and(c"A=1"))
    });
    close(pair.server);
    say!("answer {}", super::exec::ask(pair.client, "through cat"));
    shutdown(pair.client, libc::SHUT_WR);
    say!("cat: {}", wait_child(child));
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
}

/// A number that the program is told in words.
fn on_numbered_connection() {
    let pair = connected();
    let number = dup2(pair.server, 9).fd();
    let child = fork_child(|| {
        close(pair.client);
        close(pair.server);
        become_program(&[c"/usr/bin/tee", c"-a", c"/proc/self/comm"], &own_and(c"A=1"))
    });
    say!("tee: {}", wait_child(child));
    let child = fork_child(|| {
        dup2(number, 1);
        close(pair.client);
        become_program(&[c"/bin/echo", c"said by echo"], &own_and(c"A=1"))
    });
    say!("echo: {}", wait_child(child));
    await_bytes(pair.client, 13);
    show_recv("client", pair.client, 64, 0);
}

/// What is close-on-exec ends with the exec, while the program lives.
fn holds_nothing() {
    let pair = connected();
    let (reads, writes) = pipe(libc::O_CLOEXEC);
    fcntl(pair.server, libc::F_SETFD, libc::FD_CLOEXEC);
    let child = fork_child(|| {
        dup2(reads, 0);
        close(pair.client);
        become_program(&[c"/bin/cat"], &own_and(c"A=1"))
    });
    send(pair.server, b"last words", 0);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
    show_recv("client", pair.client, 32, 0);
    close(writes);
    say!("cat: {}", wait_child(child));
}

fn variables() {
    let told = output_of(&[c"/bin/date", c"-d", c"@0", c"+%Z"], &own_and(c"TZ=XYZ3"));
    say!("date: {told:?}");
    let preload =
        own_and(c"A=1").into_iter().find(|variable| variable.as_bytes().starts_with(b"LD_PRELOAD="));
    let (mut told, end) = output_of(&[c"/usr/bin/printenv", c"LD_PRELOAD"], &own_and(c"A=1"));
    told.insert_str(0, if told.is_empty() { "" } else { "LD_PRELOAD=" });
    let is_same = told.trim_end().as_bytes() == preload.map_or(vec![], CString::into_bytes);
    say!("the same to one that lists them: {is_same}, {}", end.is_empty());
    let (_, end) = output_of(&[c"/bin/true"], &[c"LD_PRELOAD=".to_owned()]);
    say!("true: {end}");
}

/// More than are written anew.
fn many_variables() {
    for count in [1, 150, 400] {
        let mut all = own_and(c"TZ=XYZ3");
        all.extend((0..count).map(|index| CString::new(format!("VARIABLE_{index}=x")).expect("no NUL")));
        say!("{count}: {:?}", output_of(&[c"/bin/date", c"-d", c"@0", c"+%Z"], &all));
    }
}

/// The file that was looked at is closed again, in the program and in who could not execute it.
fn takes_no_number() {
    let (lowest, other) = pipe(0);
    close(lowest);
    close(other);
    let child = fork_child(|| {
        become_program(&[c"/nonexistent/true"], &own_and(c"A=1"));
        become_program(&[c"/"], &own_and(c"A=1"));
        let (again, _) = pipe(0);
        say!("the same number: {}", again == lowest);
        0
    });
    say!("child: {}", wait_child(child));
    let listed = output_of(&[c"/bin/ls", c"/proc/self/fd"], &own_and(c"A=1"));
    say!("ls: {listed:?}");
}
