//! What a Prometheus server is told: asked by hand and by curl(1), read by a parser that believes nothing; and who asks holds nobody up.

use crate::client::Client;
use crate::server::Server;
use sd_proto::Request;
use sd_shm::slab::{Awaits, Counter, HAS_COLD, ROAD_WATCHED, State};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

/// A monitor that serves metrics at a socket in its directory.
fn start() -> (Server, PathBuf) {
    let place = |server: &Server| format!("unix:{}", server.directory().join("metrics.sock").display());
    let server = Server::start_with_metrics(place);
    let path = server.directory().join("metrics.sock");
    (server, path)
}

/// Runs curl: status and body; nothing where there is none.
fn curl(arguments: &[&str]) -> Option<(u16, String)> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "20", "--write-out", "\n%{http_code}"]);
    let output = match command.args(arguments).stdin(Stdio::null()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: there is no curl");
            return None;
        }
        output => output.unwrap(),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    let (body, status) = text.rsplit_once('\n').unwrap();
    Some((status.parse().unwrap(), body.to_owned()))
}

/// Asks by hand.
pub(crate) fn page(path: &std::path::Path) -> String {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    body.to_owned()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Reads OpenMetrics text as strictly as it can be: each sample belongs to the family that was announced last, no family and no
/// sample comes twice, labels are quoted, the end is marked.
pub(crate) fn parse(text: &str) -> BTreeMap<String, f64> {
    let text = text.strip_suffix("# EOF\n").expect("an end");
    let (mut families, mut samples) = (BTreeMap::new(), BTreeMap::new());
    let mut current = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let [word, name, value] = rest.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert!(is_name(name) && name.starts_with("socksdirect_"), "{line}");
            match word {
                "HELP" => {
                    assert!(families.insert(name.to_owned(), ()).is_none() && !value.is_empty(), "{line}")
                }
                "TYPE" => current = (name.to_owned(), value.to_owned()),
                "UNIT" => assert!(name == current.0 && name.ends_with(value), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (key, value) = line.rsplit_once(' ').expect(line);
        let (name, labels) = key.split_once('{').unwrap_or((key, "}"));
        for label in labels.strip_suffix('}').expect(line).split(',').filter(|label| !label.is_empty()) {
            let (label, quoted) = label.split_once('=').expect(line);
            let value = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect(line);
            assert!(is_name(label) && !value.contains(['"', '\\', '\n']), "{line}");
        }
        let suffix = name.strip_prefix(&current.0).expect(line);
        let suffixes: &[&str] = match current.1.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_sum", "_count"],
            kind => panic!("{kind}"),
        };
        assert!(suffixes.contains(&suffix), "{line}");
        assert!(samples.insert(key.to_owned(), value.parse().unwrap()).is_none(), "{line}");
    }
    samples
}

/// The monitor's user is who runs the tests.
fn of_user(name: &str, more: &str) -> String {
    format!("socksdirect_{name}{{{more}uid=\"{}\"}}", nix::unistd::geteuid())
}

#[test]
fn a_page_tells_what_happened() {
    let (server, path) = start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_listener, port) = b.listen(3);
    assert!(a.connect(port, false).1.is_some() && a.connect(port, false).1.is_none());
    assert!(a.connect(1, false).1.is_none());
    a.control.refused(Request::Leave { channel: 77 }, &[]);
    let text = page(&path);
    let all = parse(&text);
    let count = |key: &str| all.get(key).copied().unwrap_or_else(|| panic!("no {key} in {text}"));
    assert_eq!(count(&of_user("clients", "")), 2.0);
    assert_eq!((count("socksdirect_channels"), count("socksdirect_introductions_total")), (1.0, 1.0));
    assert_eq!((count("socksdirect_listeners"), count("socksdirect_registrations_total")), (1.0, 2.0));
    let routes = |road: &str, reason: &str| {
        count(&format!("socksdirect_routes_total{{road=\"{road}\",reason=\"{reason}\"}}"))
    };
    assert_eq!((routes("shm", "first_contact"), routes("shm", "known")), (1.0, 1.0));
    assert_eq!(routes("kernel", "no_listener"), 1.0);
    let requests = |kind: &str| count(&format!("socksdirect_request_seconds_count{{kind=\"{kind}\"}}"));
    assert_eq!((requests("hello"), requests("connect")), (2.0, 3.0));
    let slowest = count("socksdirect_request_seconds_bucket{le=\"+Inf\",kind=\"connect\"}");
    assert_eq!(slowest, 3.0);
    assert!(all.iter().any(|(key, count)| key.starts_with("socksdirect_refusals_total{") && *count == 1.0));
    assert!(count("socksdirect_memory_bytes{of=\"slabs\"}") > 0.0);
    assert!(count(&of_user("quota_descriptors", "")) >= 4.0);
}

/// How a process's threads wait is told when it has ended, too, and what its connections wait for while it lives; whatever it claims.
#[test]
fn waits_and_what_is_waited_for() {
    let (server, path) = start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let count = |client: &Client, which: Counter, count: u64| {
        client.slab.header().counters[which as usize].store(count, Ordering::Relaxed);
    };
    count(&a, Counter::SpinHit, 7);
    count(&a, Counter::Sleep, 3);
    count(&b, Counter::Sleep, u64::MAX);
    a.slab.header().high.store(1, Ordering::Relaxed);
    let (endpoint, cold) = (a.slab.endpoint(0).unwrap(), a.slab.cold(0).unwrap());
    endpoint.flags.store(HAS_COLD, Ordering::Relaxed);
    cold.road.store(ROAD_WATCHED, Ordering::Relaxed);
    cold.road_awaits.store(Awaits::Rate as u16, Ordering::Relaxed);
    endpoint.holders.store(1, Ordering::Relaxed);
    endpoint.state.store(State::Kernel as u8, Ordering::Release);
    let told = || {
        let all = parse(&page(&path));
        ["waits_total{how=\"spin\"}", "waits_total{how=\"sleep\"}", "watched_connections{awaits=\"rate\"}"]
            .map(|key| all.get(&format!("socksdirect_{key}")).copied().unwrap_or_default())
    };
    let bound = (1u64 << 48) as f64;
    assert_eq!(told(), [7.0, bound + 3.0, 1.0]);
    drop((a, b));
    crate::server::until("they have ended", || told()[2] == 0.0);
    assert_eq!(told(), [7.0, bound + 3.0, 0.0]);
}

/// The official checker reads it too, where there is one. It knows the older text format, in which a counter's name has its ending.
#[test]
fn promtool_can_read_it() {
    let (server, path) = start();
    let _client = Client::register(&server);
    let mut command = Command::new("promtool");
    let child = command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        println!("skipped: there is no promtool");
        return;
    };
    child.stdin.take().unwrap().write_all(page(&path).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    // 3: it would have named something otherwise.
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)) && !text.contains("parsing"), "{text}");
}

#[test]
fn the_socket_is_its_owners_and_goes_with_the_monitor() {
    let (mut server, path) = start();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    server.kill();
    assert!(path.exists(), "left behind as by kill -9");
    server.restart_with(|command| {
        command.env("SD_TEST_METRICS", format!("unix:{}", path.display()));
    });
    parse(&page(&path));
    assert!(server.end().success() && !path.exists());
}

#[test]
fn curl_can_ask() {
    let (_server, path) = start();
    let path = path.to_str().unwrap();
    let ask = |more: &[&str]| curl(&[&["--unix-socket", path], more].concat());
    let Some((status, body)) = ask(&["http://sd/metrics"]) else { return };
    assert_eq!(status, 200);
    parse(&body);
    assert_eq!(ask(&["http://sd/"]).unwrap().0, 404);
    assert_eq!(ask(&["--data", "x", "http://sd/metrics"]).unwrap().0, 405);
    assert_eq!(ask(&["--head", "http://sd/metrics"]).unwrap().0, 200);
}

#[test]
fn an_address_does_too() {
    let port = harness::process::free_port().unwrap();
    let _server = Server::start_with_metrics(|_| format!("127.0.0.1:{port}"));
    let Some((status, body)) = curl(&[&format!("http://127.0.0.1:{port}/metrics")]) else { return };
    assert_eq!(status, 200);
    parse(&body);
}

#[test]
fn nonsense_is_answered_so() {
    let (_server, path) = start();
    let mut socket = UnixStream::connect(path).unwrap();
    socket.write_all(&[b'x'; 8 << 10]).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.0 400"), "{text}");
}

/// Some say nothing, some ask and read nothing, some go away: neither clients nor others who ask wait for them.
#[test]
fn who_asks_holds_nobody_up() {
    let (server, path) = start();
    let mut idle = Vec::new();
    for number in 0..100 {
        let mut socket = UnixStream::connect(&path).unwrap();
        if number % 2 == 0 {
            let _ = socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
        }
        if number % 5 != 0 {
            idle.push(socket);
        }
        if number % 10 == 0 {
            Client::register(&server);
        }
    }
    // What is told may be a second old.
    let registrations = || parse(&page(&path))["socksdirect_registrations_total"];
    crate::server::until("all registrations are told", || registrations() == 10.0);
    // The oldest made room for others, and were told so by the end.
    let mut first = idle.swap_remove(0);
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).unwrap();
    let before = descriptors(&server);
    drop(idle);
    crate::server::until("descriptors of the visitors are closed", || descriptors(&server) < before);
}

fn descriptors(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

#[test]
fn without_a_question_nobody_looks_around() {
    let (server, path) = start();
    let clients: Vec<Client> = (0..5).map(|_| Client::register(&server)).collect();
    page(&path);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let before = sleeps(&server);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(sleeps(&server), before);
    drop(clients);
}

/// How often any of its threads has gone to sleep.
fn sleeps(server: &Server) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let of = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    threads.map(|thread| of(thread.unwrap())).sum()
}

#[test]
fn a_place_that_cannot_be_had_stops_the_start() {
    let (server, path) = start();
    let mut command = server.command();
    command.env("SD_TEST_SOCKET", server.directory().join("other.sock"));
    command.env("SD_TEST_METRICS", format!("unix:{}", path.display())).env("SD_LOG", "off");
    let output = command.output().unwrap();
    let other = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(other.contains("already running"), "{other}");
    parse(&page(&path));
}
