//! What guests boot: Debian's kernel and an initramfs with the modules of its RDMA stack, made once and kept in the target directory.
//!
//! ```text
//!  linux-image-amd64 (not -cloud, which lacks rxe) ── unpacked ──> vmlinuz
//!  busybox, init.sh, modules and what they need ── cpio ──> initramfs
//! ```
//! A guest loads all modules when it starts: it has no folder of modules, and asks for none later.

use harness::kernel::Kernel;
use harness::process::output;
use harness::scratch::Scratch;
use harness::{Result, product};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

const PACKAGE: &str = "linux-image-amd64";
const INIT: &str = include_str!("init.sh");
/// The way to the machine's files; the cable; soft RoCE, its checksum; networks of one guest.
const MODULES: [&str; 11] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "crc32_generic",
    "rdma_rxe",
    "rdma_ucm",
    "dummy",
    "veth",
    "bridge",
];

/// What qemu is given.
pub(super) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
}

impl Image {
    /// That of the last time, if it was made of the same.
    pub(super) fn get() -> Result<Image> {
        let folder = product::target().join("rdma");
        let image = Image { kernel: folder.join("vmlinuz"), initramfs: folder.join("initramfs") };
        let (stamp, wanted) = (folder.join("made-of"), format!("{PACKAGE} {MODULES:?}\n{INIT}"));
        if !std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
            std::fs::create_dir_all(&folder)?;
            image.make()?;
            std::fs::write(stamp, wanted)?;
        }
        Ok(image)
    }

    fn make(&self) -> Result<()> {
        eprintln!("rdma: fetching {PACKAGE} for the guests, once");
        let kernel = Kernel::fetch(PACKAGE)?;
        let scratch = Scratch::new("initramfs")?;
        let root = scratch.path().join("root");
        for folder in ["bin", "dev", "proc", "sys", "modules"] {
            std::fs::create_dir_all(root.join(folder))?;
        }
        harness::rootfs::add(&root, &harness::lab::locate("busybox").unwrap_or_default(), "bin/busybox")?;
        for (at, file) in kernel.modules(&MODULES)?.iter().enumerate() {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            std::fs::copy(file, root.join(format!("modules/{at:03}-{name}")))?;
        }
        std::fs::write(root.join("init"), INIT)?;
        std::fs::set_permissions(root.join("init"), std::fs::Permissions::from_mode(0o755))?;
        let pack = "find . | cpio --quiet -o -H newc | gzip -1 > \"$0\"";
        let made = scratch.path().join("made");
        output(Command::new("/bin/sh").args(["-c", pack]).arg(&made).current_dir(&root))?;
        std::fs::copy(made, &self.initramfs)?;
        std::fs::copy(kernel.image(), &self.kernel)?;
        Ok(())
    }
}
