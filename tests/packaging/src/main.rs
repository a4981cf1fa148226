//! `cargo xtask package`: builds the Debian package, and tries it, its units, the manifests and the Compose file.
//!
//! | part | what is shown |
//! |---|---|
//! | `manifests` | Kubernetes manifests and the Compose file are what their specifications allow, and agree with the units |
//! | `package` | it is built, and has what it should |
//! | `services` | installed in a Debian system of its own under systemd: [`services`] |
//! | `image` | built by its recipe; the pod runs in it |
//! | `containers` | the pods of the manifests, and the services of Compose, run here: [`containers`] |
//!
//! `--fast` leaves out what needs a package or a network. Without a network, the first time, those parts are skipped.

mod compose;
mod containers;
mod image;
mod kubelet;
mod machine;
mod manifests;
mod package;
mod services;

use clap::Parser;
use harness::report::Count;
use harness::{Result, debian, fail, install, product};
use manifests::Manifests;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(name = "cargo xtask package", disable_version_flag = true)]
struct Cli {
    /// Only what needs no package and no network
    #[arg(long)]
    fast: bool,
    /// Only the parts whose names contain this
    #[arg(long, default_value = "")]
    only: String,
    /// Use the products that are built
    #[arg(long)]
    no_build: bool,
    /// Use the programs that are installed
    #[arg(long)]
    no_install: bool,
}

/// What is installed where it is missing; the first three are enough for what is fast.
const NEEDS: [&str; 6] = ["crun", "redis-server", "ip", "mmdebstrap", "lintian", "buildah"];

struct Part {
    name: &'static str,
    is_fast: bool,
    /// What it cannot be tried without. `root` is a user; CARGO_DEB and DEBIAN come from a network.
    needs: &'static [&'static str],
    run: fn() -> Result<Tried>,
}

const CARGO_DEB: &str = "cargo-deb";
const DEBIAN: &str = "Debian root directory";

const PARTS: [Part; 5] = [
    Part { name: "manifests", is_fast: true, needs: &[], run: try_manifests },
    Part { name: "containers", is_fast: true, needs: containers::NEEDS, run: try_containers },
    Part { name: "package", is_fast: false, needs: &["dpkg-deb", "gzip", CARGO_DEB], run: try_package },
    Part {
        name: "services",
        is_fast: false,
        needs: &["root", "mmdebstrap", "nsenter", DEBIAN, CARGO_DEB],
        run: try_services,
    },
    Part {
        name: "image",
        is_fast: false,
        needs: &["root", "mmdebstrap", "buildah", "crun", DEBIAN, CARGO_DEB],
        run: try_image,
    },
];

impl Part {
    fn missing(&self) -> Option<&'static str> {
        let is_there = |need: &str| match need {
            "root" => nix::unistd::geteuid().is_root(),
            CARGO_DEB => is_had(debian::cargo_deb()),
            DEBIAN => is_had(debian::root()),
            program => install::is_there(program),
        };
        self.needs.iter().find(|need| !is_there(need)).copied()
    }
}

/// Whether something that comes from a network could be had; else why not is printed.
fn is_had<T>(made: Result<T>) -> bool {
    if let Err(error) = &made {
        println!("{error}");
    }
    made.is_ok()
}

/// What was tried, and how it went.
pub(crate) type Tried = Vec<(String, Result<String>)>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    harness::command("package", || run(&cli))
}

fn run(cli: &Cli) -> Result<()> {
    if !cli.no_build {
        product::build()?;
    }
    let needs: &[&str] = if cli.fast { &NEEDS[..3] } else { &NEEDS };
    let missing = if cli.no_install { Vec::new() } else { install::missing_of(needs) };
    if !missing.is_empty()
        && let Err(error) = install::run(&missing)
    {
        println!("not everything could be installed: {error}");
    }
    let mut count = Count::default();
    let is_wanted = |part: &&Part| part.name.contains(&cli.only) && (part.is_fast || !cli.fast);
    for part in PARTS.iter().filter(is_wanted) {
        let Part { name, run, .. } = part;
        if let Some(missing) = part.missing() {
            println!("skip  {name:<28} there is no {missing}");
            count.skipped += 1;
            continue;
        }
        let start = Instant::now();
        let tried = run().unwrap_or_else(|error| vec![((*name).to_owned(), Err(error))]);
        for (what, done) in tried {
            match &done {
                Ok(note) => println!("ok    {what:<28} {note}"),
                Err(error) => println!("FAIL  {what:<28} {error}"),
            }
            count.add(Count::one(done.is_ok()));
        }
        println!("      {name}: {:.1} s", start.elapsed().as_secs_f64());
    }
    println!("{}", count.line());
    if count.failed > 0 {
        fail!("{} failed", count.failed);
    }
    Ok(())
}

fn read_manifests() -> Result<Manifests> {
    Manifests::read(&product::root().join("packaging/kubernetes"))
}

fn try_manifests() -> Result<Tried> {
    let manifests = read_manifests()?;
    let packaging = product::root().join("packaging");
    let unit = std::fs::read_to_string(packaging.join("systemd/socksdirect.service"))?;
    let compose = compose::read(&packaging.join("compose/compose.yaml"))?;
    manifests::check_rights(manifests.monitor()?, &compose, &unit)?;
    manifests::check_volumes(manifests.monitor()?)?;
    manifests::check_volumes(manifests.pod()?)?;
    let note = format!("{} services of Compose", compose.services.0.len());
    Ok(vec![("manifests".to_owned(), Ok(note))])
}

fn try_containers() -> Result<Tried> {
    let mut tried = containers::cases(&read_manifests()?);
    let packaging = product::root().join("packaging");
    let compose = compose::read(&packaging.join("compose/compose.yaml"))?;
    let starts = image::starts(&std::fs::read_to_string(packaging.join("oci/Containerfile"))?)?;
    let services = compose::as_pods(&compose, &starts)?;
    tried.push(("containers/compose".to_owned(), containers::one(&services, None)));
    Ok(tried)
}

fn try_package() -> Result<Tried> {
    let package = package::build()?;
    Ok(vec![("package".to_owned(), package::check(&package))])
}

fn try_services() -> Result<Tried> {
    services::try_all(&package::build()?)
}

fn try_image() -> Result<Tried> {
    let manifests = read_manifests()?;
    let package = package::build()?;
    let mut store = image::Store::new()?;
    let starts = store.build(&debian::root()?, &package)?;
    let monitor = manifests.monitor()?.containers.first().and_then(|monitor| monitor.command.clone());
    if starts.len() < 4 || monitor.is_none_or(|it| !it.starts_with(&starts[..4])) {
        fail!("the image starts {starts:?}, which is not what the DaemonSet starts");
    }
    let run = containers::one(&manifests, Some(&store.mount()?));
    Ok(vec![("image/pod".to_owned(), run)])
}
