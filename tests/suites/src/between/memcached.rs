//! memcached's own tests: each file starts its server on the other host, and asks it from here.

use super::Pair;
use crate::compare::Outcomes;
use crate::stage::Stage;
use crate::{Choice, Item, each, sources};
use harness::Result;
use std::path::Path;
use std::time::Duration;

/// For a file: some wait for a minute.
const LIMIT: Duration = Duration::from_secs(120);
/// Files about UDP, and about addresses of the loopback device.
const OTHERS: [&str; 2] = ["udp.t", "ssl_ports.t"];

pub(super) fn item(name: &'static str) -> Item {
    let source = Some(sources::memcached_tests as fn() -> _);
    Item { suite: "memcached", name, needs: sources::MEMCACHED_NEEDS, is_fast: false, source, run }
}

fn run(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    let tree = sources::memcached_tests()?;
    let pair = Pair::new(stage)?;
    let here = pair.hosts[0].lab.path().join("t");
    adapt(&tree.join("t"), &here, &pair)?;
    let library = format!("-I{}", here.join("lib").display());
    let mut outcomes = Outcomes::new();
    for file in each::files(&here, "", &["t"])?.iter().filter(|file| each::is_chosen(file, choice)) {
        let path = here.join(file).display().to_string();
        let mut command = pair.command(&tree, "perl", &[&library, &path])?;
        let (word, text) = pair.test(&mut command, "perl", LIMIT)?;
        stage.write_log(file, &text, word.clone())?;
        outcomes.insert(file.clone(), word);
        outcomes.extend(each::assertions(file, &text));
    }
    pair.finish(item, choice, 50)?;
    Ok(outcomes)
}

/// Copies the tests; they take the other host for this one.
fn adapt(from: &Path, to: &Path, pair: &Pair) -> Result<()> {
    let (address, there) =
        (pair.address(), pair.script("there", &format!("exec {} \"$@\"", pair.there("")?))?);
    std::fs::create_dir_all(to.join("lib"))?;
    for file in each::files(from, "", &["t"])?.iter().filter(|file| !OTHERS.contains(&file.as_str())) {
        let text = std::fs::read_to_string(from.join(file))?;
        std::fs::write(to.join(file), text.replace("127.0.0.1", &address))?;
    }
    // What they read: certificates, users.
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        if let Some(name) =
            path.file_name().filter(|_| path.is_file() && path.extension() != Some("t".as_ref()))
        {
            std::fs::copy(&path, to.join(name))?;
        }
    }
    let module = "lib/MemcachedTest.pm";
    let text = std::fs::read_to_string(from.join(module))?;
    let text = text
        .replace("my $host = '127.0.0.1'", &format!("my $host = '{address}'"))
        .replace("PeerAddr => \"127.0.0.1:", &format!("PeerAddr => \"{address}:"))
        .replace("\"$builddir/timedrun 600", &format!("\"{} $builddir/timedrun 600", there.display()));
    Ok(std::fs::write(to.join(module), text)?)
}
