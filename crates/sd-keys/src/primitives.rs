//! What `snow` is made of: X25519, AES-256-GCM, SHA-256 and random bytes, all of `aws-lc-rs`.
//!
//! `snow` has pure Rust ones; with these there is one library of cryptography, which packets use as well. Nothing is computed here,
//! only handed on. Handshakes that others published come out byte for byte (`tests/vectors.rs`).

use crate::Secret;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey, X25519};
use aws_lc_rs::digest::{Context, SHA256};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types;
use zeroize::Zeroize;

const TAG: usize = 16;

/// The one resolver. With bytes in it these are what is random first: the private part of the handshake's own key.
#[derive(Default)]
pub struct Primitives(pub(crate) Option<Secret>);

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn types::Random>> {
        Some(Box::new(Random(self.0.clone())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn types::Dh>> {
        (*choice == DHChoice::Curve25519).then(|| Box::new(Dh::default()) as Box<dyn types::Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn types::Hash>> {
        (*choice == HashChoice::SHA256).then(|| Box::new(Hash(Context::new(&SHA256))) as Box<dyn types::Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn types::Cipher>> {
        (*choice == CipherChoice::AESGCM).then(|| Box::new(Cipher(None)) as Box<dyn types::Cipher>)
    }
}

struct Random(Option<Secret>);

impl types::Random for Random {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        match self.0.take() {
            Some(bytes) => out.copy_from_slice(bytes.get(..out.len()).ok_or(Error::Rng)?),
            None => aws_lc_rs::rand::fill(out).map_err(|_| Error::Rng)?,
        }
        Ok(())
    }
}

/// The public key of a private one.
pub(crate) fn public_of(private: &[u8; 32]) -> Option<[u8; 32]> {
    let key = PrivateKey::from_private_key(&X25519, private).ok()?.compute_public_key().ok()?;
    key.as_ref().try_into().ok()
}

#[derive(Default)]
struct Dh {
    private: Secret,
    public: [u8; 32],
}

impl types::Dh for Dh {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, private: &[u8]) {
        for (place, byte) in self.private.iter_mut().zip(private) {
            *place = *byte;
        }
        // A key of 32 bytes always has one.
        self.public = public_of(&self.private).unwrap_or_default();
    }

    fn generate(&mut self, random: &mut dyn types::Random) -> Result<(), Error> {
        let mut private = Secret::default();
        random.try_fill_bytes(private.as_mut_slice())?;
        self.set(private.as_slice());
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.private.as_slice()
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let private =
            PrivateKey::from_private_key(&X25519, self.private.as_slice()).map_err(|_| Error::Dh)?;
        let public = public.get(..32).ok_or(Error::Dh)?;
        // A public key of small order, from which nothing secret comes, is an error here.
        agreement::agree(&private, UnparsedPublicKey::new(&X25519, public), Error::Dh, |shared| {
            out.get_mut(..32).ok_or(Error::Dh)?.copy_from_slice(shared);
            Ok(())
        })
    }
}

struct Hash(Context);

impl types::Hash for Hash {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Context::new(&SHA256);
    }

    fn input(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn result(&mut self, out: &mut [u8]) {
        let context = core::mem::replace(&mut self.0, Context::new(&SHA256));
        for (place, byte) in out.iter_mut().zip(context.finish().as_ref()) {
            *place = *byte;
        }
    }
}

struct Cipher(Option<LessSafeKey>);

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl types::Cipher for Cipher {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0 = UnboundKey::new(&AES_256_GCM, key).ok().map(LessSafeKey::new);
    }

    fn encrypt(&self, number: u64, known: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let (body, tag_out) = out.split_at_mut(plain.len());
        body.copy_from_slice(plain);
        let sealed =
            self.0.as_ref().map(|key| key.seal_in_place_separate_tag(nonce(number), Aad::from(known), body));
        match sealed {
            Some(Ok(tag)) => tag_out[..TAG].copy_from_slice(tag.as_ref()),
            // `snow` has no error here: nothing readable goes out.
            _ => body.zeroize(),
        }
        plain.len() + TAG
    }

    fn decrypt(&self, number: u64, known: &[u8], sealed: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let key = self.0.as_ref().ok_or(Error::Decrypt)?;
        let mut work = sealed.to_vec();
        let plain =
            key.open_in_place(nonce(number), Aad::from(known), &mut work).map_err(|_| Error::Decrypt)?;
        out.get_mut(..plain.len()).ok_or(Error::Decrypt)?.copy_from_slice(plain);
        let len = plain.len();
        work.zeroize();
        Ok(len)
    }
}
