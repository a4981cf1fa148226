//! BusyBox as Alpine and embedded systems have it: one static program with musl that is a server, its clients, and the shell of its CGI programs.
//! A child of fork serves each connection, and executes what answers.

use super::http;
use super::table::Row;
use super::{Scenario, files};
use harness::lab::{Lab, Side, each};
use harness::process::{Proc, free_port};
use harness::{Result, fail, product};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::new("static-busybox", NEEDED, busybox).limit_s(BUILD_S + 120).extra()];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "BusyBox, static with musl",
    version: &["echo", "as packaged"],
    scenarios: "static-busybox",
    features: "httpd with files and CGI programs, tcpsvd with a shell for each connection; wget and nc as clients",
    load: None,
}];

const NEEDED: &[&str] = &["musl-gcc", "make", "bzip2", "apt-get", "curl"];
const LIMIT: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(5);
const BUILD_S: u64 = 300;
/// The source is where the system's packages come from. Headers of the kernel's are where glibc has them.
const BUILD: &str = r#"
mkdir -p parts lists/partial cache/archives/partial headers
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    test -f "$file" || continue
    sed 's/^deb /deb-src /; s/^Types:.*/Types: deb-src/' "$file" > "parts/${file##*/}"
done
apt="apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=$PWD/parts -o Dir::State::Lists=$PWD/lists \
    -o Dir::Cache=$PWD/cache -o APT::Sandbox::User=root"
$apt update
$apt source --download-only busybox
tar xf busybox_*.orig.tar.*
for folder in /usr/include/linux /usr/include/asm-generic /usr/include/mtd /usr/include/x86_64-linux-gnu/asm; do
    ln -s "$folder" headers/
done
cd busybox-*/
make allnoconfig
for option in $OPTIONS; do sed -i "s/# CONFIG_$option is not set/CONFIG_$option=y/" .config; done
yes "" | make oldconfig
make -j2 CC=musl-gcc HOSTCC=gcc CFLAGS="-I$OLDPWD/headers"
mv busybox ..
"#;
const OPTIONS: &str = "LFS USE_BB_CRYPT USE_BB_CRYPT_SHA HTTPD FEATURE_HTTPD_RANGES FEATURE_HTTPD_CGI FEATURE_HTTPD_ERROR_PAGES WGET NC \
    NC_SERVER TCPSVD CAT ECHO MD5SUM ASH SH_IS_ASH";

/// A way to build it.
pub(crate) struct Variant {
    /// What it is kept as.
    pub(crate) name: &'static str,
    /// Beside those of all.
    pub(crate) options: &'static str,
}

const STATIC: Variant = Variant { name: "static-busybox", options: "STATIC" };

/// The program.
pub(crate) fn build(lab: &Lab, variant: &Variant) -> Result<PathBuf> {
    let kept = product::target().join("apps").join(variant.name);
    let program = kept.join("busybox");
    if !program.exists() {
        let folder = lab.path().join(variant.name);
        std::fs::create_dir_all(&folder)?;
        let mut build = Command::new("sh");
        build
            .args(["-ec", BUILD])
            .current_dir(&folder)
            .env("OPTIONS", format!("{OPTIONS} {}", variant.options));
        Proc::start(&mut build, "build", lab.path())?.wait(Duration::from_secs(BUILD_S))?.ok()?;
        std::fs::create_dir_all(&kept)?;
        std::fs::copy(folder.join("busybox"), &program)?;
    }
    Ok(program)
}

fn busybox(lab: &mut Lab) -> Result<()> {
    let program = build(lab, &STATIC)?;
    let place = Place { program: &program, inner: &program };
    serve_all(lab, &place)
}

/// Where the program is.
pub(crate) struct Place<'a> {
    /// As it is started.
    pub(crate) program: &'a Path,
    /// As it finds itself.
    pub(crate) inner: &'a Path,
}

/// Says what it was asked, and what it was told.
const CGI: &str = "echo 'Content-type: text/plain'\necho\necho \"$REQUEST_METHOD $QUERY_STRING\"\ncat\n";

/// Its servers and its clients, with curl beside them.
pub(crate) fn serve_all(lab: &Lab, place: &Place) -> Result<()> {
    let root = lab.path().join("files");
    std::fs::create_dir_all(root.join("cgi-bin"))?;
    let cgi = root.join("cgi-bin/say");
    std::fs::write(&cgi, format!("#!{} ash\n{CGI}", place.inner.display()))?;
    std::fs::set_permissions(&cgi, std::fs::Permissions::from_mode(0o755))?;
    each(|server, client| {
        web(lab, place.program, &root, [server, client])?;
        lines(lab, place, [server, client])
    })
}

fn web(lab: &Lab, program: &Path, root: &Path, [server, client]: [Side; 2]) -> Result<()> {
    let port = free_port()?;
    let (program, address) = (program.display().to_string(), format!("127.0.0.1:{port}"));
    let args = ["httpd", "-f", "-p", &address, "-h", &root.display().to_string()];
    let process = lab.serve(server, port, &program, &args)?;
    let watch = lab.watch(port);
    http::files(lab, client, root, &format!("http://{address}"))?;
    let data = files::bytes(100_000);
    let said = http::upload(lab, client, "POST", &format!("http://{address}/cgi-bin/say?word"), &data)?;
    files::require_same("a CGI program's answer", &said, &[b"POST word\n", &data[..]].concat())?;
    for name in ["1.bin", "1000000.bin"] {
        let wanted = std::fs::read(root.join(name))?;
        let url = format!("http://{address}/{name}");
        let got = lab.run(client, &program, &["wget", "-q", "-O", "-", &url], LIMIT)?.stdout;
        files::require_same(&url, &got, &wanted)?;
    }
    lab.check_if_seen(watch, server, client)?;
    process.terminate(GRACE)?;
    Ok(())
}

/// A shell for each connection, which has it as its standard streams.
fn lines(lab: &Lab, place: &Place, [server, client]: [Side; 2]) -> Result<()> {
    const SHELL: &str = "while read line; do echo \"heard $line\"; done";
    let port = free_port()?;
    let [program, inner] = [place.program, place.inner].map(|path| path.display().to_string());
    let text = port.to_string();
    let args = ["tcpsvd", "127.0.0.1", &text, &inner, "ash", "-c", SHELL];
    let process = lab.serve(server, port, &program, &args)?;
    let told = lab.path().join("told");
    std::fs::write(&told, (0..300).map(|n| format!("{n}\n")).collect::<String>())?;
    let wanted: String = (0..300).map(|n| format!("heard {n}\n")).collect();
    for _ in 0..3 {
        let args = ["-c", TALK, &program, &text];
        let said = lab.run_with_input(client, &told, "sh", &args, LIMIT)?;
        if said.text() != wanted {
            fail!("the shell said {} bytes of {}: {:?}", said.text().len(), wanted.len(), said.stderr);
        }
    }
    process.terminate(GRACE)?;
    Ok(())
}

/// BusyBox' nc ends when either side does: it is kept until all was said.
const TALK: &str = r#"{ cat; sleep 1; } | "$0" nc 127.0.0.1 "$1""#;
