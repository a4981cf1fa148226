//! Each kind of request, with each kind of descriptor, about each thing of others' and of one's own; and each in a state
//! in which it should not come. What must not come back: a descriptor that the request has no claim to. What happens to
//! others, `cargo xtask hostile` looks at. A kind that has no row is a failure.

use crate::client::{Client, Control, std_fd};
use crate::supply::supply;
use crate::syn::Way;
use sd_proto::{Ip, MESSAGE_MAX, Reply, Request};
use std::io;
use std::os::fd::AsRawFd;

/// Numbers of channels and clients that are not mallory's, or nobody's.
struct Ids {
    own: u64,
    all: Vec<u64>,
}

/// Begins as root, for what only root can have here, and becomes `user`.
pub(crate) fn run(user: u32, victims: &[i32], port: u16) -> io::Result<()> {
    let mounted = crate::fuse::mount(Some(std::time::Duration::from_millis(2)), user);
    crate::become_user(user)?;
    let client = Client::register()?;
    let way = Way::ask(&client, port, false)?;
    let own_channel = way.as_ref().map_or(1, |way| way.channel.id);
    // Numbers go up: those before are others' and those behind are not given yet.
    let mut all: Vec<u64> = vec![0, 1, u64::MAX, own_channel];
    for step in [1, 2, 4095, 4096, 1 << 20] {
        all.extend([own_channel.wrapping_sub(step), own_channel.wrapping_add(step)]);
    }
    let ids = Ids { own: own_channel, all };
    let rows = [requests(&ids, port), announcements(&ids)].concat();
    for example in Request::examples().filter(|example| rows.iter().all(|row| row.kind() != example.kind())) {
        println!("seen: there is no row for {example:?}");
    }
    let supply = supply(&client, victims, port)?;
    let mut sent = out_of_turn(&client, &ids, port)?;
    let mut control = client.control;
    for (name, fds) in &supply {
        let numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        for request in requests(&ids, port) {
            sent += 1;
            if !attempt(&control, request, name, &numbers, &ids) {
                control = fresh()?;
            }
        }
        // Whoever announces a channel has it, whatever its number: so these come last, and are forgotten again.
        for request in announcements(&ids) {
            sent += 1;
            attempt(&control, request, name, &numbers, &ids);
        }
        control = fresh()?;
    }
    println!("{sent} messages with {} kinds of descriptors", supply.len());
    println!("ready");
    drop((supply, mounted));
    Ok(())
}

/// Each request from who has not registered: a child that has only been announced, and a process that has separated.
fn out_of_turn(client: &Client, ids: &Ids, port: u16) -> io::Result<u64> {
    let nothing = Ids { own: u64::MAX - 9, all: vec![ids.own, 1] };
    let fds = client.hello_fds();
    let mut sent = 0;
    for request in requests(&nothing, port).into_iter().chain(announcements(&nothing)) {
        if matches!(request, Request::Hello { .. }) {
            continue;
        }
        for is_child in [false, true] {
            let parent = fresh()?;
            let control = if is_child {
                child(&parent, sent as u32)?
            } else {
                parent.ask(Request::Separate, &[])?;
                parent
            };
            for fds in [&fds[..0], &fds[..1], &fds[3..]] {
                sent += 1;
                if !attempt(&control, request, "out of turn", fds, &nothing) {
                    break;
                }
            }
        }
    }
    twice(client)?;
    Ok(sent)
}

/// The other end of what a parent announces for a child.
fn child(parent: &Control, serial: u32) -> io::Result<Control> {
    let pair = sd_sys::msg::pair_with_credentials().map_err(|e| io::Error::from_raw_os_error(e.0))?;
    let [monitors, childs] = pair.map(std_fd);
    parent.tell(Request::Fork { member: 1, serial }, &[monitors.as_raw_fd()])?;
    Ok(Control { socket: childs })
}

/// Hello after Hello is the next image of an exec; with the slab of another process it is that process's image no more.
fn twice(other: &Client) -> io::Result<()> {
    for again in [false, true] {
        let client = Client::register()?;
        let mut fds = client.hello_fds();
        for slab in [client.slab_fd.as_raw_fd(), other.slab_fd.as_raw_fd()] {
            fds[0] = slab;
            let hello = Request::Hello { version: crate::client::version(), again };
            let (reply, _) = client.control.ask(hello, &fds)?;
            if !matches!(reply, Reply::Welcome { .. } | Reply::Error { .. }) {
                println!("seen: a second Hello: {reply:?}");
            }
        }
    }
    Ok(())
}

/// The one before was hung up on, as it should be.
fn fresh() -> io::Result<Control> {
    for _ in 0..200 {
        if let Ok(client) = Client::register() {
            return Ok(client.control);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Client::register().map(|client| client.control)
}

/// Sends one and reads what it leads to; false when the monitor has hung up.
fn attempt(control: &Control, request: Request, name: &str, fds: &[i32], ids: &Ids) -> bool {
    let sent = control.send(request.encode(&mut [0; MESSAGE_MAX]), fds);
    if sent.and_then(|()| control.tell(Request::Status, &[])).is_err() {
        return false;
    }
    loop {
        match control.receive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                println!("seen: {request:?} with {name}: no answer for ten seconds");
                return false;
            }
            Err(_) => return false,
            Ok((Reply::Status, _)) => return true,
            // Without descriptors: Status is refused, or the request was.
            Ok((Reply::Error { .. }, fds)) if fds.is_empty() => {}
            Ok((reply, fds)) if !fds.is_empty() && !may_have(&request, &reply, ids) => {
                println!("seen: {request:?} with {name}: {reply:?} with {} descriptors", fds.len());
            }
            Ok(_) => {}
        }
    }
}

/// What a request is answered with when it is about what the client may have.
fn may_have(request: &Request, reply: &Reply, ids: &Ids) -> bool {
    match (request, reply) {
        (Request::Hello { .. }, Reply::Welcome { .. }) | (_, Reply::Status) => true,
        // Bob's listener is for everybody.
        (Request::Connect { .. }, Reply::Route { .. }) => true,
        // To listeners of one's own.
        (_, Reply::NewChannel { .. } | Reply::Offer { .. }) => true,
        (
            Request::Adopter { channel, .. }
            | Request::GiveBack { channel, .. }
            | Request::ThreadWakerOf { channel, .. }
            | Request::WakeTarget { channel, .. },
            _,
        ) => *channel == ids.own,
        (Request::Memory { .. }, Reply::Memory) => true,
        _ => false,
    }
}

fn requests(ids: &Ids, port: u16) -> Vec<Request> {
    let mut all = vec![
        Request::Hello { version: crate::client::version(), again: false },
        Request::Hello { version: crate::client::version(), again: true },
        Request::Listen { index: 0, generation: 1, backlog: 1, accepting: true },
        Request::Listen { index: u32::MAX, generation: 1, backlog: u32::MAX, accepting: true },
        Request::Accepting { index: 0, accepting: true },
        Request::Unlisten { index: 0 },
        Request::WillListen { index: 0 },
        Request::Waiting { index: 0 },
        Request::Waiting { index: u32::MAX },
        Request::Listens { index: 0, generation: 1, backlog: 1 },
        Request::Listens { index: u32::MAX, generation: 2, backlog: u32::MAX },
        Request::CannotTake,
        Request::Separate,
        Request::Memory { len: 1 << 40 },
        Request::Memory { len: 4096 },
        Request::Idle { channel: 0 },
        Request::Idle { channel: u64::MAX },
        Request::Resume,
        Request::Restored,
        Request::Bridge,
        Request::Share,
        Request::ThreadWaker { number: 0 },
        Request::ThreadWaker { number: u32::MAX },
        Request::Bind { ip: Ip::v4([127, 0, 0, 1]), port, reuse: false },
        Request::Bind { ip: Ip::v4([0; 4]), port: 22, reuse: true },
        Request::Status,
    ];
    let local = Ip::v4([127, 0, 0, 1]);
    for (ip, port) in [(local, port), (Ip::v4([0; 4]), 22), (Ip([255; 16]), 0)] {
        all.push(Request::Tuple { ip, port, to_ip: local, to_port: port });
        all.push(Request::Tuple { ip: local, port, to_ip: ip, to_port: port });
    }
    for (ip, port) in [([127, 0, 0, 1], port), ([0; 4], port), ([127, 0, 0, 1], 22), ([203, 0, 113, 9], port)]
    {
        let ip = Ip::v4(ip);
        all.push(Request::Connect { ip, port, nth: u32::MAX, want_ports: true, want_channel: true });
    }
    for member in [0, 1, 63, 64] {
        all.extend([Request::Fork { member, serial: member }, Request::Born { serial: member }]);
    }
    all.extend([false, true].map(|again| Request::Pump { again }));
    let twins = ids.all.iter().flat_map(|near| ids.all.iter().map(move |far| (*near, *far)));
    all.extend(twins.map(|(near, far)| Request::Carries { near, far }));
    of_promotion(&mut all, port);
    of_an_engine(&mut all, ids, port);
    for channel in ids.all.iter().copied() {
        all.extend([Request::Stuck { channel }, Request::Leave { channel }, Request::Decline { channel }]);
        all.extend([Request::Finished { channel }, Request::Over { channel }]);
        all.push(Request::Adopter { channel, number: 1 });
        for listener in [0, u32::MAX] {
            all.push(Request::Admits { channel, listener, ip: local });
        }
        for side in [0, 1] {
            all.push(Request::Join { id: channel, side });
            all.push(Request::Ring { channel, side });
            all.push(Request::GiveBack { channel, side });
            all.push(Request::WakeTarget { channel, side, client: channel });
            all.push(Request::ThreadWakerOf { channel, side, number: 0 });
            all.push(Request::Signal { channel, slot: 0, side, urgent: true });
        }
    }
    all
}

fn of_promotion(all: &mut Vec<Request>, port: u16) {
    all.extend([0, 1, u64::MAX].map(|serial| Request::Withdraw { serial }));
    all.extend([(0, true, false), (u64::MAX, false, true), (1, true, true)].map(
        |(serial, connected, restored)| Request::Offer {
            serial,
            connected,
            restored,
            sent: u32::MAX,
            received: u32::MAX,
            messages: serial as u32,
            bytes: serial,
            asked_ms: sd_sys::time::real_ms(),
        },
    ));
    for (pid, port) in [(0, 0), (1, 0), (0, port), (u32::MAX, 0)] {
        let at_once = port == 0;
        for before_ns in [0, u64::MAX] {
            all.push(Request::Demote { pid, ip: Ip([0; 16]), port, at_once, before_ns });
        }
        all.push(Request::Detach { pid, tell: at_once });
    }
}

/// Who is none says that it is, and asks for connections of others.
fn of_an_engine(all: &mut Vec<Request>, ids: &Ids, port: u16) {
    all.push(Request::Engine);
    let local = Ip::v4([127, 0, 0, 1]);
    for (ip, told) in [(local, false), (local, true), (Ip([255; 16]), true)] {
        let (remote, remote_port) = (local, port);
        let asked = |serial, local_port| Request::Sought {
            serial,
            local: ip,
            local_port,
            remote,
            remote_port,
            told,
            sent: u32::MAX,
            received: u32::MAX,
            sent_from: u32::from(local_port),
            received_from: u32::MAX,
            engine: ip,
            port,
            tenant: sd_proto::Name::of("blue"),
        };
        all.extend([asked(0, 0), asked(u64::MAX, port)]);
    }
    for number in [0, u64::MAX] {
        let kind = Request::KINDS.iter().filter_map(|kind| Request::made_of(*kind, &mut || number));
        all.extend(kind.filter(|request| {
            matches!(request, Request::Peer { .. } | Request::Listed { .. } | Request::Network { .. })
        }));
    }
    let offers = ids.all.iter().copied().chain([0, 1, u64::MAX]);
    for (client, offer) in offers.flat_map(|client| [(client, 0), (client, 1)]) {
        let (engine, tenant) = (Ip([255; 16]), sd_proto::Name::of("blue"));
        all.push(Request::Found { client, offer, serial: client, behind: u32::MAX, engine, port, tenant });
        all.push(Request::Stays { client, offer, why: offer as u32 });
    }
}

fn announcements(ids: &Ids) -> Vec<Request> {
    let announce = |id: u64, side| Request::Channel { id, side, peer_pid: 1, adopter: 0 };
    ids.all.iter().flat_map(|id| [announce(*id, 0), announce(*id, 1)]).collect()
}
