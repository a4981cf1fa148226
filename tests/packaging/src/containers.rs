//! Containers of the manifests' pods, on this machine: the monitor's, and two that talk to each other.
//!
//! | case | networks | users | road |
//! |---|---|---|---|
//! | `pod` | one, as the containers of a pod have | the node's | shared memory |
//! | `pod-users` | one | another thousandfold for each container (`hostUsers: false`) | shared memory |
//! | `two-pods` | one each, joined by a cable | the node's | shared memory, once they have lasted |
//! | `two-pods-users` | one each | others for each | shared memory, likewise |
//! | `two-pods-off` | one each | the node's | the kernel: the monitor runs with `--promote=off` |
//!
//! Every container has mounts, process ids, IPC and a host name of its own. The monitor is in a container too.

use crate::kubelet::{Node, Place, Running};
use crate::manifests::Manifests;
use harness::network::Network;
use harness::scratch::Scratch;
use harness::{Result, fail, lab, procfs, product, retry, rootfs, ss, until};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PORT: u16 = 6379;
/// Where pods of the manifests have the monitor's socket.
const RUN: &str = "/run/socksdirect";
/// Programs of the images.
const PROGRAMS: [&str; 4] = ["redis-server", "redis-benchmark", "redis-cli", "cp"];
const LIMIT: Duration = Duration::from_secs(20);

struct Case {
    name: &'static str,
    networks: usize,
    has_users: bool,
    /// Connections that the kernel has made stay there.
    is_off: bool,
    /// As `sd ss` names it.
    road: &'static str,
}

const fn case(name: &'static str, networks: usize, has_users: bool, road: &'static str) -> Case {
    Case { name, networks, has_users, is_off: false, road }
}

const CASES: [Case; 5] = [
    case("pod", 1, false, "shm"),
    case("pod-users", 1, true, "shm"),
    case("two-pods", 2, false, "shm"),
    case("two-pods-users", 2, true, "shm"),
    Case { is_off: true, ..case("two-pods-off", 2, false, "kernel") },
];

/// What the cases cannot be run without.
pub(crate) const NEEDS: &[&str] =
    &["root", "crun", "unshare", "ip", "redis-server", "redis-benchmark", "redis-cli", "cp"];

/// All cases, each with a node of its own, and an image of this machine's files.
pub(crate) fn cases(manifests: &Manifests) -> crate::Tried {
    let run = |case: &Case| {
        let world = World::new(manifests, None);
        (format!("containers/{}", case.name), world.and_then(|world| world.run(case)))
    };
    CASES.iter().map(run).collect()
}

/// The first case, in an image that is there or in one of this machine's files.
pub(crate) fn one(manifests: &Manifests, image: Option<&Path>) -> Result<String> {
    World::new(manifests, image)?.run(&CASES[0])
}

struct World<'a> {
    manifests: &'a Manifests,
    node: Node,
    run: PathBuf,
    scratch: Scratch,
}

impl World<'_> {
    fn new<'a>(manifests: &'a Manifests, image: Option<&Path>) -> Result<World<'a>> {
        let scratch = Scratch::new("node")?;
        let run = scratch.path().join("run");
        let own = scratch.path().join("image");
        std::fs::create_dir_all(&run)?;
        let image = match image {
            Some(image) => image.to_owned(),
            None => make_image(&own).map(|()| own)?,
        };
        let node = Node {
            scratch: scratch.path().to_owned(),
            image,
            host_paths: [(RUN.to_owned(), run.clone())].into(),
            configs: manifests.configs.clone(),
        };
        Ok(World { manifests, node, run, scratch })
    }

    fn socket(&self) -> PathBuf {
        self.run.join("monitor.sock")
    }

    fn snapshot(&self) -> Result<ss::Snapshot> {
        ss::snapshot(&product::sd(), &self.socket())
    }

    fn run(&self, case: &Case) -> Result<String> {
        let own = Network::new()?;
        let spec = self.manifests.monitor()?;
        let place = Place { pod: "monitor", network: &own, users: None };
        let mut wanted = container(spec, "monitor")?.clone();
        wanted.command.iter_mut().for_each(|words| {
            words.extend(case.is_off.then(|| "--promote=off".to_owned()));
        });
        let mut monitor = self.node.start(spec, &wanted, &place)?;
        until("the monitor answers", LIMIT, || self.snapshot().is_ok() || !monitor.process.is_running())?;
        if !monitor.process.is_running() {
            fail!("no monitor: {}", monitor.process.last_words());
        }
        // It is in no PID namespace of its own, so that crun has become it or started it.
        let pid = self.monitor_pid()?;
        std::thread::sleep(Duration::from_millis(50));
        let before = procfs::fd_count(pid);
        let note = self.talk(case).map_err(|error| format!("{error}; {}", monitor.process.last_words()))?;
        retry(LIMIT, || match procfs::fd_count(pid) {
            now if now <= before => Ok(()),
            now => fail!("the monitor had {before} descriptors and has {now}, when all are gone"),
        })?;
        let log = monitor.stop()?.ok()?.stderr;
        if !log.contains("listening at") {
            fail!("the monitor does not say what it does: {log}");
        }
        match log.lines().find(|line| line.contains("WARN") || line.contains("ERROR")) {
            Some(line) => fail!("the monitor complains: {line}"),
            None => Ok(note),
        }
    }

    fn monitor_pid(&self) -> Result<u32> {
        let found = procfs::descendants(std::process::id());
        let monitor = found.iter().find(|process| process.comm == "sd");
        monitor.map(|process| process.pid).ok_or_else(|| "there is no process of the monitor".into())
    }

    /// Server and client, and the road that their connections take.
    fn talk(&self, case: &Case) -> Result<String> {
        let spec = self.manifests.pod()?;
        let addresses = [1, 2].map(|last| Ipv4Addr::new(10, 88, 0, last));
        let networks = (0..case.networks).map(|_| Network::new()).collect::<Result<Vec<_>>>()?;
        let (here, there) = match networks.as_slice() {
            [both] => (both, both),
            [here, there] => {
                Network::join([(here, addresses[0]), (there, addresses[1])])?;
                (here, there)
            }
            _ => fail!("{} networks", networks.len()),
        };
        let users = |first| case.has_users.then_some(first);
        let servers = Place { pod: "server", network: here, users: users(200_000) };
        let clients = Place { pod: "client", network: there, users: users(300_000) };
        self.node.prepare(spec, &servers)?;
        let mut server = self.node.start(spec, container(spec, "redis")?, &servers)?;
        server.process.wait_for_text("Ready to accept connections", LIMIT)?;
        let mut wanted = container(spec, "client")?.clone();
        if case.networks > 1 {
            let address = addresses[0].to_string();
            let words = wanted.command.iter_mut().flatten();
            words.filter(|word| *word == "127.0.0.1").for_each(|word| *word = address.clone());
            server
                .exec(&["redis-cli", "config", "set", "protected-mode", "no"], self.scratch.path())?
                .ok()?;
        }
        self.node.prepare(spec, &clients)?;
        let client = self.node.start(spec, &wanted, &clients)?;
        let note = retry(LIMIT, || self.road(case, &client));
        client.kill();
        let ended = server.stop();
        let note = note?;
        ended?;
        Ok(note)
    }

    /// A process of the server's.
    fn server(&self) -> Option<u64> {
        let found = procfs::descendants(std::process::id());
        found.iter().find(|process| process.comm == "redis-server").map(|process| process.pid.into())
    }

    /// Whether the connections that are there now take the road that they should, and bytes move.
    fn road(&self, case: &Case, client: &Running) -> Result<String> {
        let snapshot = self.snapshot()?;
        let seen = snapshot.of_port(PORT);
        let of_client: Vec<_> = seen.iter().filter(|c| c.comm == "redis-benchmark").collect();
        if of_client.len() < 10 {
            fail!("there are {} connections of the client: {}", of_client.len(), client.process.last_words());
        }
        if let Some(other) = of_client.iter().find(|c| c.path != case.road) {
            fail!("not {}: {}", case.road, ss::describe(other));
        }
        if !client.process.stdout_so_far().contains("rps=") {
            fail!("nothing is transferred: {}", client.process.last_words());
        }
        let server = seen.iter().find(|c| c.comm == "redis-server").map(|c| c.pid);
        check_namespaces(case, [server.or(self.server()), Some(of_client[0].pid)])?;
        let reason = of_client[0].reason.clone().unwrap_or_else(|| "shared memory".to_owned());
        Ok(format!("{} connections: {reason}", of_client.len()))
    }
}

/// The containers are what the case says that they are.
fn check_namespaces(case: &Case, processes: [Option<u64>; 2]) -> Result<()> {
    let of = |process: Option<u64>, name: &str| -> Result<PathBuf> {
        let Some(process) = process else { fail!("there is no process in the container") };
        Ok(std::fs::read_link(format!("/proc/{process}/ns/{name}"))?)
    };
    let here = Some(u64::from(std::process::id()));
    let usual = ["mnt", "pid", "ipc", "uts"].map(|name| (name, true));
    let others = [("net", case.networks > 1), ("user", case.has_users)];
    for (name, is_apart) in usual.into_iter().chain(others) {
        let [server, client, ours] = [of(processes[0], name)?, of(processes[1], name)?, of(here, name)?];
        if (server != client) != is_apart || (name != "user" && server == ours) {
            fail!("{name}: the server is in {server:?}, the client in {client:?}, we are in {ours:?}");
        }
    }
    Ok(())
}

fn container<'a>(spec: &'a PodSpec, name: &str) -> Result<&'a Container> {
    let found = spec.containers.iter().find(|container| container.name == name);
    found.ok_or_else(|| format!("the pod has no container {name}").into())
}

/// A root directory with the product where its package has it, and the programs of the pod.
fn make_image(root: &Path) -> Result<()> {
    for folder in ["proc", "dev", "sys", "tmp", "run", "etc/socksdirect"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    let policy = product::root().join("packaging/debian/policy");
    std::fs::copy(policy, root.join("etc/socksdirect/policy"))?;
    rootfs::add(root, &product::sd(), "usr/bin/sd")?;
    rootfs::add(root, &product::libsd(), "usr/lib/socksdirect/libsd.so")?;
    rootfs::add(root, &product::freestanding(), "usr/lib/socksdirect/libsd-freestanding.so")?;
    for program in PROGRAMS {
        let Some(path) = lab::locate(program) else { fail!("{program} is not installed") };
        rootfs::add(root, &path.canonicalize()?, &format!("usr/bin/{program}"))?;
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n")?;
    Ok(())
}
