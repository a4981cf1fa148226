//! A record that came. All may come twice and in any order.

use super::gaps::Gaps;
use super::table::{Stage, flip};
use super::{Connection, Ends, Fault, NO_TENANT, News, Session, WORDS_MAX};
use crate::WINDOW_MAX;
use crate::wire::{Record, RecordKind, expand};
use alloc::boxed::Box;

type Done = Result<(), Fault>;

impl Session {
    /// Takes a record of a connection.
    pub(crate) fn take(&mut self, record: &Record<'_>, ends: &mut (impl Ends + ?Sized)) -> Done {
        let connection = flip(record.connection);
        if record.kind == RecordKind::Open {
            return self.take_open(connection, record, ends);
        }
        let Some(key) = self.table.find(connection) else {
            self.stale += 1;
            return Ok(());
        };
        let is_gone = matches!(self.table.at(key).stage, Stage::Resetting | Stage::Refusing);
        match record.kind {
            RecordKind::Reset => self.take_reset(key, record, ends),
            RecordKind::Refused => self.take_refused(key, record.extra, ends),
            _ if is_gone => Ok(()),
            RecordKind::Opened => self.take_opened(key, record.body, ends),
            RecordKind::Data => self.take_data(key, record, ends),
            RecordKind::Placed => self.take_placed(key, record, ends),
            RecordKind::Credit => self.take_credit(key, record.position, ends),
            RecordKind::Fin => self.take_fin(key, record.position, ends),
            RecordKind::Urgent => self.take_urgent(key, record, ends),
            RecordKind::Said => self.take_said(key, record, ends),
            RecordKind::Stop => {
                let conn = self.table.at(key);
                if !core::mem::replace(&mut conn.peer_stopped, true) {
                    self.tell(key, News::Stopped, ends);
                }
                Ok(())
            }
            RecordKind::Open | RecordKind::Ack | RecordKind::Ping => Ok(()),
        }
    }

    fn tell(&mut self, key: u32, news: News<'_>, ends: &mut (impl Ends + ?Sized)) {
        let connection = Connection(self.table.number(key));
        ends.told(connection, self.table.at(key).end, news);
    }

    fn take_open(&mut self, connection: u32, record: &Record<'_>, ends: &mut (impl Ends + ?Sized)) -> Done {
        let Some((head, words)) = record.body.split_first_chunk::<8>() else { return Err(Fault::Violation) };
        let fields = u64::from_le_bytes(*head);
        let (tenant, window) = (fields as u32, (fields >> 32) as u32);
        if window > WINDOW_MAX || words.len() > WORDS_MAX {
            return Err(Fault::Violation);
        }
        let key = self.table.place(connection).map_err(|()| Fault::Violation)?;
        if !self.table.is_newer(key, connection) {
            self.stale += 1;
            return Ok(());
        }
        if self.table.at(key).stage != Stage::Free {
            // Who opens the next one here has seen the end of the one before.
            self.finish(key, News::Closed, ends);
        }
        self.table.occupy(key, connection);
        self.connections += 1;
        let known = self.turns.find(tenant);
        let conn = self.table.at(key);
        conn.peer_window = window;
        let Some(known) = known else {
            (conn.stage, conn.code) = (Stage::Refusing, NO_TENANT);
            self.say(key, RecordKind::Refused);
            return Ok(());
        };
        (conn.stage, conn.tenant) = (Stage::Offered, known);
        self.tell(key, News::Offered { tenant, words }, ends);
        Ok(())
    }

    fn take_opened(&mut self, key: u32, body: &[u8], ends: &mut (impl Ends + ?Sized)) -> Done {
        let Some((window, words)) = body.split_first_chunk() else { return Err(Fault::Violation) };
        let window = u32::from_le_bytes(*window);
        let conn = self.table.at(key);
        if window > WINDOW_MAX || words.len() > WORDS_MAX || conn.stage == Stage::Offered {
            return Err(Fault::Violation);
        }
        if conn.stage == Stage::Opening {
            (conn.stage, conn.peer_window, conn.words) = (Stage::Open, window, None);
            self.is_confirmed(key);
            self.turns.update(&mut self.table, key);
            self.tell(key, News::Opened(words), ends);
            self.finish_if_done(key, ends);
        }
        Ok(())
    }

    fn take_refused(&mut self, key: u32, code: u8, ends: &mut (impl Ends + ?Sized)) -> Done {
        match self.table.at(key).stage {
            Stage::Opening => self.finish(key, News::Refused(code), ends),
            Stage::Resetting => self.finish(key, News::Closed, ends),
            _ => return Err(Fault::Violation),
        }
        Ok(())
    }

    fn take_data(&mut self, key: u32, record: &Record<'_>, ends: &mut (impl Ends + ?Sized)) -> Done {
        let body = record.body;
        self.take_bytes(key, record.position, body.len(), ends, |ends, end, position, known| {
            ends.write(end, position, body.get(known..).unwrap_or_default())
        })
    }

    /// The same of bytes that the carrier has placed.
    fn take_placed(&mut self, key: u32, record: &Record<'_>, ends: &mut (impl Ends + ?Sized)) -> Done {
        let Ok(len) = record.body.try_into().map(u16::from_le_bytes) else { return Err(Fault::Violation) };
        let len = usize::from(len);
        if len == 0 {
            return Err(Fault::Violation);
        }
        self.placed[1] += len as u64;
        self.take_bytes(key, record.position, len, ends, |ends, end, position, known| {
            ends.placed(end, position, len - known)
        })
    }

    /// Bytes that have come: `put` gets the end, the position, and how many of them had come before.
    fn take_bytes<E: Ends + ?Sized>(
        &mut self,
        key: u32,
        position: u32,
        len: usize,
        ends: &mut E,
        put: impl FnOnce(&mut E, u64, u64, usize),
    ) -> Done {
        let conn = self.table.at(key);
        let whole = conn.whole;
        let begin = expand(position, whole);
        let end = begin.saturating_add(len as u64);
        let limit = conn.consumed + u64::from(conn.window);
        if end > limit || conn.peer_fin.is_some_and(|fin| end > fin) {
            return Err(Fault::Violation);
        }
        if end <= whole {
            return Ok(());
        }
        if begin > whole {
            let is_kept = conn.gaps.get_or_insert_with(|| Box::new(Gaps::default())).add(begin, end);
            if !is_kept {
                return Err(Fault::Shortage);
            }
            put(ends, conn.end, begin, 0);
            return Ok(());
        }
        put(ends, conn.end, whole, (whole - begin) as usize);
        conn.whole = end;
        if let Some(gaps) = &mut conn.gaps {
            conn.whole = gaps.absorb(end);
            if gaps.is_empty() {
                conn.gaps = None;
            }
        }
        let (to, number) = (conn.whole, conn.end);
        let connection = Connection(self.table.number(key));
        ends.told(connection, number, News::Arrived(to));
        self.look_at_end(key, ends);
        Ok(())
    }

    /// Tells the end when all before it has come.
    fn look_at_end(&mut self, key: u32, ends: &mut (impl Ends + ?Sized)) {
        let conn = self.table.at(key);
        if let Some((_, code)) = conn.peer_reset.filter(|reset| reset.0 <= conn.whole) {
            return self.finish(key, News::Reset(code), ends);
        }
        if conn.peer_fin == Some(conn.whole) {
            self.tell(key, News::Fin, ends);
            self.finish_if_done(key, ends);
        }
    }

    fn take_credit(&mut self, key: u32, position: u32, ends: &mut (impl Ends + ?Sized)) -> Done {
        let conn = self.table.at(key);
        let to = expand(position, conn.peer_consumed);
        if to > conn.taken {
            return Err(Fault::Violation);
        }
        if to > conn.peer_consumed {
            conn.peer_consumed = to;
            self.turns.update(&mut self.table, key);
            self.tell(key, News::Consumed(to), ends);
        }
        Ok(())
    }

    fn take_fin(&mut self, key: u32, position: u32, ends: &mut (impl Ends + ?Sized)) -> Done {
        let conn = self.table.at(key);
        let fin = expand(position, conn.whole);
        match conn.peer_fin {
            Some(known) if known == fin => Ok(()),
            Some(_) => Err(Fault::Violation),
            None if fin < conn.whole => Err(Fault::Violation),
            None => {
                conn.peer_fin = Some(fin);
                self.look_at_end(key, ends);
                Ok(())
            }
        }
    }

    fn take_reset(&mut self, key: u32, record: &Record<'_>, ends: &mut (impl Ends + ?Sized)) -> Done {
        let conn = self.table.at(key);
        if matches!(conn.stage, Stage::Resetting | Stage::Refusing) {
            self.finish(key, News::Closed, ends);
            return Ok(());
        }
        // Position 0 is meant as such: it ends at once.
        let at = if record.position == 0 { 0 } else { expand(record.position, conn.whole) };
        conn.peer_reset.get_or_insert((at, record.extra));
        conn.announced = conn.taken;
        self.turns.update(&mut self.table, key);
        let conn = self.table.at(key);
        if conn.peer_reset.is_some_and(|reset| reset.0 <= conn.whole) {
            self.finish(key, News::Reset(record.extra), ends);
        }
        Ok(())
    }

    fn take_said(&mut self, key: u32, record: &Record<'_>, ends: &mut (impl Ends + ?Sized)) -> Done {
        let conn = self.table.at(key);
        if record.body.len() > WORDS_MAX || conn.stage == Stage::Offered {
            return Err(Fault::Violation);
        }
        let count = expand(record.position, conn.peer_said);
        if count > conn.peer_said {
            conn.peer_said = count;
            self.tell(key, News::Said(record.body), ends);
        }
        Ok(())
    }

    fn take_urgent(&mut self, key: u32, record: &Record<'_>, ends: &mut (impl Ends + ?Sized)) -> Done {
        let conn = self.table.at(key);
        let at = expand(record.position, conn.whole);
        if at > conn.peer_urgent {
            conn.peer_urgent = at;
            self.tell(key, News::Urgent(at, record.extra), ends);
        }
        Ok(())
    }
}
