//! Sources of Debian packages, for the tests in them, and the programs that are built of these.
//!
//! A package's original archive is fetched once to `target/suites/src`. The list of sources and apt's state lie there
//! too, so that nothing of the machine's own changes.

use super::Item;
use harness::process::tail;
use harness::{Result, fail, product};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MARK: &str = ".complete";

fn home() -> PathBuf {
    product::target().join("suites/src")
}

/// Fetches and builds what an item needs, while nobody else does.
pub(crate) fn prepare(item: &Item) -> Result<()> {
    let Some(make) = item.source else { return Ok(()) };
    std::fs::create_dir_all(home())?;
    let lock = std::fs::File::create(home().join("lock"))?;
    lock.lock()?;
    make().map(drop)
}

/// The folder with the unpacked original source of a package.
pub(crate) fn source(package: &str) -> Result<PathBuf> {
    let folder = home().join(package);
    if !folder.join(MARK).exists() {
        fetch(package, &folder).map_err(|error| format!("the source of {package}: {error}"))?;
        std::fs::write(folder.join(MARK), "")?;
    }
    let is_tree = |path: &PathBuf| path.join("README").exists() || path.join("README.md").exists();
    let folders = std::fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    // The largest archive comes with others for some packages; theirs have the package's name first.
    let mut trees: Vec<PathBuf> = folders.filter(is_tree).collect();
    trees.sort_by_key(|path| std::cmp::Reverse(path.join("test").exists() || path.join("t").exists()));
    match trees.into_iter().next() {
        Some(tree) => Ok(tree),
        None => fail!("the source of {package} has no folder with a README"),
    }
}

/// Fetches and unpacks. An index may name a version that its server lacks (yet), so older ones are tried too.
fn fetch(package: &str, folder: &Path) -> Result<()> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder)?;
    let options = apt_options()?;
    let versions = output(Command::new("apt-cache").args(&options).args(["showsrc", package]))?;
    let mut versions: Vec<&str> =
        versions.lines().filter_map(|line| line.strip_prefix("Version: ")).collect();
    versions.reverse();
    let get = |version: &&&str| {
        let mut command = Command::new("apt-get");
        command.args(&options).args(["source", "--download-only"]).arg(format!("{package}={version}"));
        output(command.current_dir(folder)).is_ok()
    };
    if versions.iter().find(get).is_none() {
        fail!("apt-get source fetched none of the versions {versions:?}");
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.contains(".orig") && !name.ends_with(".asc") {
            output(Command::new("tar").arg("xf").arg(&path).current_dir(folder))?;
        }
    }
    Ok(())
}

/// Options that make apt use our list and state. The list is the machine's own with `deb-src` for `deb`.
fn apt_options() -> Result<Vec<String>> {
    let apt = home().join("apt");
    let lists = apt.join("lists");
    let parts = apt.join("parts");
    let options = vec![
        "-o".to_owned(),
        "Dir::Etc::SourceList=/dev/null".to_owned(),
        "-o".to_owned(),
        format!("Dir::Etc::SourceParts={}", parts.display()),
        "-o".to_owned(),
        format!("Dir::State::Lists={}", lists.display()),
    ];
    if !apt.join(MARK).exists() {
        std::fs::create_dir_all(lists.join("partial"))?;
        std::fs::create_dir_all(&parts)?;
        write_source_lists(&parts)?;
        output(Command::new("apt-get").args(&options).args(["update", "-q"]))?;
        std::fs::write(apt.join(MARK), "")?;
    }
    Ok(options)
}

fn write_source_lists(parts: &Path) -> Result<()> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = std::fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    for (index, file) in files.iter().enumerate() {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        let end = file.extension().unwrap_or_default().to_string_lossy().into_owned();
        let text: String = text.lines().map(|line| as_sources(line) + "\n").collect();
        if matches!(end.as_str(), "list" | "sources") {
            std::fs::write(parts.join(format!("{index}.{end}")), text)?;
        }
    }
    Ok(())
}

/// A line of either format, with sources for binaries.
fn as_sources(line: &str) -> String {
    match line.strip_prefix("deb ") {
        Some(rest) => format!("deb-src {rest}"),
        None if line.starts_with("Types:") => "Types: deb-src".to_owned(),
        None => line.to_owned(),
    }
}

/// Runs a helper to its end; its output, and an error unless it succeeded.
fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        fail!("{:?} ended with {}: {}", command.get_program(), output.status, tail(&words, 500));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// libuv's test program, of its sources and the packaged library.
pub(crate) fn libuv_tests() -> Result<PathBuf> {
    let tree = source("libuv1")?;
    let program = tree.join("sd-uv-tests");
    if !program.exists() {
        // The list of files is in the build description; there are some for other systems too.
        let list = std::fs::read_to_string(tree.join("CMakeLists.txt"))?;
        let words = list.split_whitespace().map(|word| word.trim_end_matches(')'));
        let is_ours = |word: &&str| {
            word.starts_with("test/")
                && word.ends_with(".c")
                && !word.contains("benchmark")
                && !word.contains("runner-win")
        };
        let files: std::collections::BTreeSet<&str> = words.filter(is_ours).collect();
        let mut command = Command::new("gcc");
        command.args(["-O1", "-w", "-DUSING_UV_SHARED=1", "-D_GNU_SOURCE", "-Iinclude", "-Isrc"]);
        command.args(files).arg("-o").arg(&program).args(["-luv", "-lpthread", "-ldl", "-lutil"]);
        output(command.current_dir(&tree))?;
    }
    Ok(program)
}

/// libevent's regression program, of its sources.
pub(crate) fn libevent_tests() -> Result<PathBuf> {
    let tree = source("libevent")?;
    let build = tree.join("sd-build");
    let program = build.join("bin/regress");
    if !program.exists() {
        std::fs::create_dir_all(&build)?;
        let options = [
            "-DEVENT__DISABLE_BENCHMARK=ON",
            "-DEVENT__DISABLE_SAMPLES=ON",
            "-DEVENT__LIBRARY_TYPE=STATIC",
            "-DCMAKE_BUILD_TYPE=Release",
        ];
        output(Command::new("cmake").arg("..").args(options).current_dir(&build))?;
        output(Command::new("make").args(["-j2", "regress"]).current_dir(&build))?;
    }
    Ok(program)
}

/// What memcached's tests and its build need.
pub(crate) const MEMCACHED_NEEDS: &[&str] =
    &["memcached", "gcc", "make", "perl", "/usr/include/event2/event.h", "/usr/include/openssl/ssl.h"];

/// memcached's source, with the program built of it: its tests move the clock of a debug build, and give options that
/// the packaged program lacks. They prefer Unix sockets; they get TCP.
pub(crate) fn memcached_tests() -> Result<PathBuf> {
    let tree = source("memcached")?;
    if !tree.join("memcached-debug").exists() {
        let module = tree.join("t/lib/MemcachedTest.pm");
        let text = std::fs::read_to_string(&module)?;
        std::fs::write(module, text.replace("= !supports_unix_socket();", "= 1;"))?;
        output(Command::new("./configure").args(["--enable-tls", "--disable-docs"]).current_dir(&tree))?;
        output(Command::new("make").arg("-j2").current_dir(&tree))?;
    }
    Ok(tree)
}

/// PostgreSQL's regression tests, with the library that they load into the server and the program that runs them.
pub(crate) fn postgres_tests() -> Result<PathBuf> {
    let tree = source("postgresql-15")?;
    let tests = tree.join("src/test/regress");
    if !tests.join(MARK).exists() {
        let options = ["--without-readline", "--without-zlib", "--without-icu"];
        output(Command::new("./configure").args(options).current_dir(&tree))?;
        output(Command::new("make").args(["-s", "-j2", "all"]).current_dir(&tests))?;
        std::fs::write(tests.join(MARK), "")?;
    }
    Ok(tests)
}

/// nginx' own tests, which are in no package. Where their place cannot be reached, a copy that lies in this folder is taken.
pub(crate) fn nginx_tests() -> Result<PathBuf> {
    let folder = home().join("nginx-tests");
    if !folder.join("lib/Test/Nginx.pm").exists() {
        let place = "https://github.com/nginx/nginx-tests";
        output(Command::new("git").args(["clone", "-q", "--depth", "1", place]).arg(&folder))?;
    }
    Ok(folder)
}

/// The folder in which curl's tests run, with its test servers and programs of its sources, and the packaged library.
pub(crate) fn curl_tests() -> Result<PathBuf> {
    let tree = source("curl")?;
    let build = tree.join("sd-build");
    let tests = build.join("tests");
    if !build.join(MARK).exists() {
        let packaged = output(Command::new("ldd").arg("/usr/bin/curl"))?;
        let mut words =
            packaged.split_whitespace().skip_while(|word| !word.starts_with("libcurl.so")).skip(2);
        let Some(packaged) = words.next() else { fail!("/usr/bin/curl has no libcurl") };
        std::fs::create_dir_all(&build)?;
        let options =
            ["--with-openssl", "--enable-shared", "--disable-static", "--without-libpsl", "--disable-ldap"];
        output(Command::new("../configure").args(options).current_dir(&build))?;
        output(Command::new("make").args(["-s", "-j2", "-C", "lib"]).current_dir(&build))?;
        let library = build.join("lib/.libs/libcurl.so.4");
        let _ = std::fs::remove_file(&library);
        std::os::unix::fs::symlink(packaged, library)?;
        output(Command::new("make").args(["-s", "-j2", "-C", "tests"]).current_dir(&build))?;
        std::fs::write(build.join(MARK), "")?;
    }
    Ok(tests)
}

/// A folder with gevent, which brings its tests, and what they import. Debian's package has no tests.
pub(crate) fn gevent() -> Result<PathBuf> {
    let folder = home().join("gevent");
    if !folder.join(MARK).exists() {
        let _ = std::fs::remove_dir_all(&folder);
        let mut command = Command::new(super::cpython::PYTHON);
        command.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target"]).arg(&folder);
        output(command.args(["gevent", "dnspython", "psutil", "requests"]))?;
        std::fs::write(folder.join(MARK), "")?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_both_formats() {
        assert_eq!(
            as_sources("deb [trusted=yes] place suite main"),
            "deb-src [trusted=yes] place suite main"
        );
        assert_eq!(as_sources("Types: deb"), "Types: deb-src");
        assert_eq!(as_sources("URIs: place"), "URIs: place");
    }
}
