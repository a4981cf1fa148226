//! Engines that meet in a test.
#![allow(dead_code)]

use sd_keys::identity::{Identity, SharedKey};
use sd_keys::{
    Accept, Cipher, Credentials, Handshake, Keys, Mode, Progress, Protection, PublicKey, Purpose, Sealed,
    Trust,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder of its own, gone at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sd-keys-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The same shared key as often as it is wanted.
pub(crate) fn shared(count: usize) -> Vec<SharedKey> {
    let folder = Folder::new();
    let path = folder.0.join("shared");
    SharedKey::generate().unwrap().write_new(&path).unwrap();
    (0..count).map(|_| SharedKey::read(&path).unwrap()).collect()
}

pub(crate) struct Engine {
    pub(crate) shows: Credentials,
    pub(crate) key: PublicKey,
}

pub(crate) fn engine_with(shared: Option<SharedKey>, cipher: Cipher) -> Engine {
    let identity = Identity::generate().unwrap();
    let key = identity.public();
    Engine { shows: Credentials::new(Some(identity), shared, cipher).unwrap(), key }
}

/// Two that share a key and know each other's.
pub(crate) fn pair(cipher: Cipher) -> [Engine; 2] {
    let keys = shared(2).into_iter().map(|key| engine_with(Some(key), cipher));
    keys.collect::<Vec<_>>().try_into().ok().unwrap()
}

pub(crate) fn open(
    from: &Engine,
    to: &Engine,
    mode: Mode,
    purpose: &Purpose,
) -> (Handshake, Vec<u8>, Handshake) {
    let (peer, accept) = match mode {
        Mode::Pinned => (Some(to.key), Accept::Keys(vec![from.key])),
        Mode::Shared => (None, Accept::Shared),
    };
    let (first, message) = from.shows.begin(peer, purpose).unwrap();
    (first, message, to.shows.answer(accept, purpose).unwrap())
}

/// The keys of both, and the three messages.
pub(crate) fn shake(from: &Engine, to: &Engine, mode: Mode) -> ([Keys; 2], [Vec<u8>; 3]) {
    let (mut first, one, mut second) = open(from, to, mode, &Purpose::Link);
    let Progress::Send(two) = second.receive(&one).unwrap() else { panic!("an answer") };
    let Progress::SendAndDone(three, keys) = first.receive(&two).unwrap() else { panic!("keys") };
    let Progress::Done(others) = second.receive(&three).unwrap() else { panic!("keys") };
    ([keys, others], [one, two, three])
}

pub(crate) fn seals(cipher: Cipher) -> [Sealed; 2] {
    let [a, b] = pair(cipher);
    shake(&a, &b, Mode::Pinned).0.map(Sealed::new)
}

pub(crate) fn protections() -> [Protection; 2] {
    let [a, b] = pair(Cipher::Aes128Gcm);
    shake(&a, &b, Mode::Shared).0.map(|keys| Protection::new(&Trust::Shared, Some(keys)).unwrap())
}
