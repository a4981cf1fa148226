//! Little-endian fields one after the other.

use crate::{Ip, MESSAGE_MAX, Malformed};

pub(crate) struct Writer<'a> {
    buf: &'a mut [u8; MESSAGE_MAX],
    len: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buf: &'a mut [u8; MESSAGE_MAX]) -> Self {
        Writer { buf, len: 0 }
    }

    /// No message comes near MESSAGE_MAX; bytes beyond it would be dropped.
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        for b in bytes {
            if let Some(slot) = self.buf.get_mut(self.len) {
                *slot = *b;
                self.len += 1;
            }
        }
        self
    }

    pub(crate) fn u8(&mut self, v: u8) -> &mut Self {
        self.put(&[v])
    }
    pub(crate) fn bool(&mut self, v: bool) -> &mut Self {
        self.put(&[u8::from(v)])
    }
    pub(crate) fn u16(&mut self, v: u16) -> &mut Self {
        self.put(&v.to_le_bytes())
    }
    pub(crate) fn u32(&mut self, v: u32) -> &mut Self {
        self.put(&v.to_le_bytes())
    }
    pub(crate) fn u64(&mut self, v: u64) -> &mut Self {
        self.put(&v.to_le_bytes())
    }
    pub(crate) fn ip(&mut self, v: Ip) -> &mut Self {
        self.put(&v.0)
    }
    pub(crate) fn done(self) -> &'a [u8] {
        self.buf.get(..self.len).unwrap_or(&[])
    }
}

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[b]| b)
    }
    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }
    pub(crate) fn ip(&mut self) -> Result<Ip, Malformed> {
        self.take().map(Ip)
    }
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
