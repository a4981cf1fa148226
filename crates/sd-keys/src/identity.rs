//! Keys: an engine's pair, the public keys of others, a key that several engines share; and the files that they are in.
//!
//! A key file is a line with a word that says which kind it is, so that one is not taken for the other, and 32 bytes in base64:
//!
//! ```text
//! # sd: keep this file to yourself. Public key: Jb2…=
//! private-key cHJ…=
//! ```
//! It is a regular file of the caller's own that nobody else may read or write. All else is refused, and the error says what to do.
//! Private and shared keys are wiped when they go, and never shown.

use crate::Secret;
use crate::primitives::public_of;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;
use zeroize::Zeroizing;

/// No key file is longer.
const FILE_MAX: usize = 4096;
const PRIVATE: &str = "private-key";
const SHARED: &str = "shared-key";

/// Whom another engine is known by: 44 characters of base64.
///
/// ```
/// let text = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
/// let key: sd_keys::PublicKey = text.parse().unwrap();
/// assert_eq!(key.to_string(), text);
/// assert!(text[1..].parse::<sd_keys::PublicKey>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

/// It is not 32 bytes in base64, or is the key of nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAKey;

impl fmt::Display for NotAKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a key: 44 characters of base64 are wanted")
    }
}

impl std::error::Error for NotAKey {}

impl FromStr for PublicKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<PublicKey, NotAKey> {
        let bytes = decode(text)?;
        if bytes.iter().all(|byte| *byte == 0) { Err(NotAKey) } else { Ok(PublicKey(*bytes)) }
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

fn decode(text: &str) -> Result<Secret, NotAKey> {
    let mut bytes = Zeroizing::new([0; 33]);
    let len = STANDARD.decode_slice(text, bytes.as_mut_slice()).map_err(|_| NotAKey)?;
    let mut key = Secret::default();
    key.copy_from_slice(&bytes[..32]);
    if len == 32 { Ok(key) } else { Err(NotAKey) }
}

/// Why a key file is not taken.
#[derive(Debug)]
pub enum FileError {
    Io(io::Error),
    NotRegular,
    /// The user that has it.
    Foreign(u32),
    /// Its mode.
    Open(u32),
    /// There is no line of this kind, or more than one, or something else.
    Content(&'static str),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Io(error) => write!(f, "{error}"),
            FileError::NotRegular => f.write_str("not a regular file"),
            FileError::Foreign(user) => {
                write!(f, "it belongs to user {user}: a key file has to belong to who reads it")
            }
            FileError::Open(mode) => {
                write!(f, "its mode is {mode:04o}, so others may use it: chmod 600 is needed")
            }
            FileError::Content(kind) => {
                write!(f, "it has to have one line: {kind} and 44 characters of base64")
            }
        }
    }
}

impl std::error::Error for FileError {}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> FileError {
        FileError::Io(error)
    }
}

impl From<rustix::io::Errno> for FileError {
    fn from(error: rustix::io::Errno) -> FileError {
        FileError::Io(error.into())
    }
}

/// An engine's own pair of keys.
pub struct Identity {
    private: Secret,
    public: PublicKey,
}

impl Identity {
    /// A new one, of random bytes.
    pub fn generate() -> io::Result<Identity> {
        Identity::of(random()?).ok_or_else(|| io::Error::other("the library made no public key"))
    }

    pub fn read(path: &Path) -> Result<Identity, FileError> {
        Identity::of(read(path, PRIVATE)?).ok_or(FileError::Content(PRIVATE))
    }

    /// Writes it to a file that was not there.
    pub fn write_new(&self, path: &Path) -> Result<(), FileError> {
        write_new(path, PRIVATE, &self.private, &format!(" Public key: {}", self.public))
    }

    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn private(&self) -> &[u8; 32] {
        &self.private
    }

    fn of(private: Secret) -> Option<Identity> {
        let public = PublicKey(public_of(&private)?);
        Some(Identity { private, public })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

/// A key that several engines have.
pub struct SharedKey(Secret);

impl SharedKey {
    pub fn generate() -> io::Result<SharedKey> {
        random().map(SharedKey)
    }

    pub fn read(path: &Path) -> Result<SharedKey, FileError> {
        read(path, SHARED).map(SharedKey)
    }

    pub fn write_new(&self, path: &Path) -> Result<(), FileError> {
        write_new(path, SHARED, &self.0, "")
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey")
    }
}

pub(crate) fn random() -> io::Result<Secret> {
    let mut bytes = Secret::default();
    aws_lc_rs::rand::fill(bytes.as_mut_slice())
        .map_err(|_| io::Error::other("no random bytes are to be had"))?;
    Ok(bytes)
}

/// What is looked at is what is read: the open file, not its name.
fn read(path: &Path, kind: &'static str) -> Result<Secret, FileError> {
    // A pipe would keep us waiting.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(FileError::NotRegular);
    }
    if facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(FileError::Foreign(facts.uid()));
    }
    if facts.mode() & 0o7177 != 0 {
        return Err(FileError::Open(facts.mode() & 0o7777));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_MAX));
    file.take(FILE_MAX as u64).read_to_end(&mut bytes)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| FileError::Content(kind))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (Some(line), None) = (lines.next(), lines.next()) else { return Err(FileError::Content(kind)) };
    let key = line.strip_prefix(kind).filter(|rest| rest.starts_with([' ', '\t']));
    key.and_then(|key| decode(key.trim()).ok()).ok_or(FileError::Content(kind))
}

fn write_new(path: &Path, kind: &str, key: &[u8; 32], remark: &str) -> Result<(), FileError> {
    let mut coded = Zeroizing::new([0; 44]);
    let len = STANDARD.encode_slice(key, coded.as_mut_slice()).map_err(io::Error::other)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file
        .write_all(format!("# sd: keep this file to yourself.{remark}\n{kind} ").as_bytes())
        .and_then(|()| file.write_all(&coded[..len]))
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| file.sync_all());
    if let Err(error) = written {
        // Half a key is none, and would be in the way of the next attempt.
        let _ = std::fs::remove_file(path);
        return Err(error.into());
    }
    Ok(())
}
