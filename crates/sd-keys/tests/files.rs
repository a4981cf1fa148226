//! Key files: which are taken, and what is said of the others.

mod common;

use common::Folder;
use sd_keys::{FileError, Identity, SharedKey};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn what_is_written_is_read() {
    let folder = Folder::new();
    let (key, shared) = (folder.0.join("key"), folder.0.join("shared"));
    let made = Identity::generate().unwrap();
    made.write_new(&key).unwrap();
    SharedKey::generate().unwrap().write_new(&shared).unwrap();
    assert_eq!(Identity::read(&key).unwrap().public(), made.public());
    assert_eq!(fs::metadata(&key).unwrap().mode() & 0o7777, 0o600);
    assert!(fs::read_to_string(&key).unwrap().contains(&made.public().to_string()));
    SharedKey::read(&shared).unwrap();
    let again = made.write_new(&key).unwrap_err();
    assert!(matches!(&again, FileError::Io(error) if error.kind() == std::io::ErrorKind::AlreadyExists));
    // One kind is not taken for the other.
    assert!(matches!(SharedKey::read(&key), Err(FileError::Content("shared-key"))));
    assert!(matches!(Identity::read(&shared), Err(FileError::Content("private-key"))));
    assert_ne!(Identity::generate().unwrap().public(), made.public());
}

#[test]
fn what_others_may_use_is_refused() {
    let folder = Folder::new();
    let key = folder.0.join("key");
    Identity::generate().unwrap().write_new(&key).unwrap();
    for mode in 0..0o10000 {
        fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        let is_fit = mode & 0o7177 == 0;
        // Who may not read his own file is told so by the kernel; root may.
        match Identity::read(&key) {
            Ok(_) => assert!(is_fit, "{mode:o}"),
            Err(FileError::Open(found)) => assert!(!is_fit && found == mode, "{mode:o}"),
            Err(FileError::Io(_)) => assert_eq!(mode & 0o400, 0, "{mode:o}"),
            Err(other) => panic!("{mode:o}: {other}"),
        }
    }
    fs::set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    let said = Identity::read(&key).unwrap_err().to_string();
    assert_eq!(said, "its mode is 0640, so others may use it: chmod 600 is needed");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    if std::os::unix::fs::chown(&key, Some(12345), None).is_ok() {
        assert!(matches!(Identity::read(&key), Err(FileError::Foreign(12345))));
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = Folder::new();
    assert!(matches!(Identity::read(&folder.0), Err(FileError::NotRegular)));
    assert!(matches!(Identity::read("/dev/null".as_ref()), Err(FileError::NotRegular)));
    assert!(matches!(Identity::read(&folder.0.join("none")), Err(FileError::Io(_))));
    let pipe = std::ffi::CString::new(folder.0.join("pipe").to_str().unwrap()).unwrap();
    // SAFETY: the path is a string of C.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    assert!(matches!(Identity::read(&folder.0.join("pipe")), Err(FileError::NotRegular)), "and nobody waits");
    // A name that leads to a file that is fit is fit: what is looked at is the file.
    let (key, link) = (folder.0.join("key"), folder.0.join("link"));
    Identity::generate().unwrap().write_new(&key).unwrap();
    std::os::unix::fs::symlink(&key, &link).unwrap();
    Identity::read(&link).unwrap();
}

#[test]
fn content() {
    let folder = Folder::new();
    let key = folder.0.join("key");
    let good = "private-key hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
    let long = format!("{}{good}", "#\n".repeat(3000));
    for (text, is_fit) in [
        (good, true),
        (&format!("# why\n\n  {good}  \n"), true),
        (&format!("{good}\n{good}"), false),
        ("", false),
        ("private-key", false),
        (&good[..good.len() - 1], false),
        (&good.replace(' ', ""), false),
        (&good.replace('h', "-"), false),
        (&format!("{good}="), false),
        (&good.replace("private", "public"), false),
        (&long, false),
    ] {
        fs::write(&key, text).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o400)).unwrap();
        assert_eq!(Identity::read(&key).is_ok(), is_fit, "{text}");
        fs::remove_file(&key).unwrap();
    }
    fs::write(&key, [0xff; 100]).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(Identity::read(&key), Err(FileError::Content(_))));
}
