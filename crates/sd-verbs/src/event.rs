//! What a device tells unasked: ibv_get_async_event(3).

use crate::abi;
use crate::device::Context;
use std::os::fd::BorrowedFd;

/// Something has happened to a device, or to what was made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing of this device works any more.
    Device,
    /// This port has no link.
    PortDown(u8),
    /// Of the names of this port some are others now.
    Names(u8),
    /// A completion queue has overflowed, and tells nothing any more.
    Queue,
    /// Another of `enum ibv_event_type`. That a pair has failed its completions say, too.
    Other(u32),
}

impl Event {
    fn of(said: &abi::AsyncEvent) -> Event {
        let port = said.element[0] as u8;
        match said.kind {
            abi::event::DEVICE_FATAL => Event::Device,
            abi::event::PORT_ERR => Event::PortDown(port),
            abi::event::GID_CHANGE => Event::Names(port),
            abi::event::CQ_ERR => Event::Queue,
            other => Event::Other(other),
        }
    }
}

impl Context {
    /// Becomes readable when the device has something to tell.
    pub fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as this value lives, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    /// The next thing that it tells, if there is one.
    pub fn take_event(&self) -> Option<Event> {
        let mut said = abi::AsyncEvent::default();
        // SAFETY: the context is open, and its descriptor does not block; one such structure is written.
        if unsafe { (self.library().get_async_event)(self.raw(), &raw mut said) } != 0 {
            return None;
        }
        let event = Event::of(&said);
        // SAFETY: what was just taken is acknowledged once, before what it tells of can be destroyed: that would wait for this.
        unsafe { (self.library().ack_async_event)(&raw mut said) };
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_devices_tell() {
        let of = |kind, port: u32| Event::of(&abi::AsyncEvent { element: [port, 77], kind, _none: 0 });
        assert_eq!(of(8, 0), Event::Device);
        assert_eq!(of(10, 2), Event::PortDown(2));
        assert_eq!(of(18, 1), Event::Names(1));
        assert_eq!(of(0, 0), Event::Queue);
        assert_eq!(of(9, 1), Event::Other(9));
    }
}
