//! Descriptors of channels that the program has closed past libc: what of them the monitor gives back (see `monitor::client::resume`).

use crate::fd::hidden::{hold, put_back};
use crate::link::channel::Channel;
use crate::monitor::client::{Control, Mail, ask};
use crate::monitor::sink::Closed;
use crate::process::PROCESS;
use crate::socket::thread_waker;
use core::sync::atomic::Ordering;
use sd_proto::{Reply, Request};
use sd_shm::channel::SLOTS;

/// What the connection to the monitor hands to this file.
pub(super) const CLOSED: Closed = Closed { can_be_given_back, forget, restore };

fn can_be_given_back() -> bool {
    !PROCESS.channels().any(|channel| channel.inherited.load(Ordering::Relaxed))
}

fn forget() {
    crate::socket::pin::drop_lost();
    crate::link::stranger::drop_lost();
    for channel in PROCESS.channels() {
        channel.thread_wakers.drop_lost();
        (0..SLOTS).filter_map(|slot| channel.endpoint(slot)).for_each(thread_waker::ring_none);
        channel.wake_targets.drop_lost();
    }
}

fn restore(control: &mut Control, fd: i32) -> Option<()> {
    PROCESS.channels().try_for_each(|channel| restore_channel(control, fd, channel))?;
    crate::link::reclaim::say_finished_again();
    Some(())
}

fn restore_channel(control: &mut Control, fd: i32, channel: &'static Channel) -> Option<()> {
    let request = Request::GiveBack { channel: channel.id, side: channel.side as u32 };
    match ask(control, fd, &request, &[])? {
        (Reply::GivenBack { stranger }, got) => {
            if stranger {
                channel.peer_becomes_stranger();
            }
            let fits = match *got.fds.as_slice() {
                [_, _] => {
                    let [segment, event_fd] = got.fds.take()?;
                    put_back(segment, channel.segment_fd.raw())
                        & put_back(event_fd, channel.peer.event_fd.raw())
                }
                // Who could be woken there is gone.
                [_] if channel.is_over() => {
                    let [segment] = got.fds.take()?;
                    put_back(segment, channel.segment_fd.raw()) & hold(channel.peer.event_fd.raw())
                }
                _ => false,
            };
            fits.then_some(())?;
        }
        // It has ended meanwhile.
        (Reply::Error { .. }, _) => {
            (hold(channel.segment_fd.raw()) & hold(channel.peer.event_fd.raw())).then_some(())?;
            control.mail.push_back(Mail::Dead(channel.id));
            PROCESS.mail_seen.fetch_sub(1, Ordering::AcqRel);
        }
        _ => return None,
    }
    channel.adopters.numbered().try_for_each(|(number, peer)| {
        let request = Request::Adopter { channel: channel.id, number };
        let answer = ask(control, fd, &request, &[])?;
        let event_fd = answer.1.fds.take().map(|[_, event_fd]| event_fd);
        event_fd
            .map_or_else(|| hold(peer.event_fd.raw()), |event_fd| put_back(event_fd, peer.event_fd.raw()))
            .then_some(())
    })
}
