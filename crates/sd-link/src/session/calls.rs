//! What the caller asks for.

use super::table::Stage;
use super::{Connection, Error, Limits, Session, WORDS_MAX};
use crate::wire::RecordKind;
use crate::{Nanos, WINDOW_MAX};

impl Session {
    pub(crate) fn tenant(&mut self, id: u32, limits: Limits, now: Nanos) -> Result<(), Error> {
        if self.turns.set(id, limits, now) { Ok(()) } else { Err(Error::TooMany) }
    }

    pub(crate) fn open(
        &mut self,
        tenant: u32,
        end: u64,
        window: u32,
        words: &[u8],
    ) -> Result<Connection, Error> {
        let tenant = self.turns.find(tenant).ok_or(Error::UnknownTenant)?;
        if words.len() > WORDS_MAX {
            return Err(Error::TooMany);
        }
        let key = self.table.take().ok_or(Error::TooMany)?;
        let conn = self.table.at(key);
        (conn.stage, conn.tenant, conn.end) = (Stage::Opening, tenant, end);
        conn.window = window.min(WINDOW_MAX);
        conn.words = Some(words.into());
        self.connections += 1;
        self.say(key, RecordKind::Open);
        Ok(Connection(self.table.number(key)))
    }

    pub(crate) fn accept(
        &mut self,
        connection: Connection,
        end: u64,
        window: u32,
        words: &[u8],
    ) -> Result<(), Error> {
        if words.len() > WORDS_MAX {
            return Err(Error::TooMany);
        }
        let key = self.find(connection, &[Stage::Offered])?;
        let conn = self.table.at(key);
        (conn.stage, conn.end, conn.window) = (Stage::Open, end, window.min(WINDOW_MAX));
        conn.words = (!words.is_empty()).then(|| words.into());
        self.say(key, RecordKind::Opened);
        Ok(())
    }

    pub(crate) fn refuse(&mut self, connection: Connection, code: u8) -> Result<(), Error> {
        let key = self.find(connection, &[Stage::Offered])?;
        let conn = self.table.at(key);
        (conn.stage, conn.code) = (Stage::Refusing, code);
        self.say(key, RecordKind::Refused);
        Ok(())
    }

    /// There are bytes up to this position, which [`super::Ends::read`] will give.
    pub(crate) fn announce(&mut self, connection: Connection, to: u64) -> Result<(), Error> {
        let key = self.find(connection, &[Stage::Open, Stage::Opening])?;
        let conn = self.table.at(key);
        if conn.code & FIN_SAID != 0 {
            return Err(Error::NotNow);
        }
        if to.saturating_sub(conn.taken) > u64::from(WINDOW_MAX) {
            return Err(Error::TooMany);
        }
        conn.announced = conn.announced.max(to);
        self.turns.update(&mut self.table, key);
        Ok(())
    }

    /// The reader has consumed up to this position: its memory may be written again.
    pub(crate) fn consumed(&mut self, connection: Connection, to: u64) -> Result<(), Error> {
        let key = self.find(connection, &[Stage::Open, Stage::Opening])?;
        let conn = self.table.at(key);
        let to = to.min(conn.whole);
        if to > conn.consumed {
            conn.consumed = to;
            self.say(key, RecordKind::Credit);
        }
        Ok(())
    }

    /// Nothing comes behind what was announced.
    pub(crate) fn fin(&mut self, connection: Connection) -> Result<(), Error> {
        let key = self.find(connection, &[Stage::Open, Stage::Opening])?;
        self.table.at(key).code |= FIN_SAID;
        self.say(key, RecordKind::Fin);
        Ok(())
    }

    /// Ends it: at once, or behind what was sent, so that the peer gets that first.
    pub(crate) fn reset(&mut self, connection: Connection, code: u8, at_once: bool) -> Result<(), Error> {
        let key = self.find(connection, &[Stage::Open, Stage::Opening, Stage::Offered])?;
        let conn = self.table.at(key);
        conn.stage = Stage::Resetting;
        conn.reset_at = if at_once { 0 } else { conn.taken };
        (conn.code, conn.gaps) = (code, None);
        conn.due &= super::bit(RecordKind::Open) | super::bit(RecordKind::Opened);
        self.turns.update(&mut self.table, key);
        self.say(key, RecordKind::Reset);
        Ok(())
    }

    /// The byte before this position is urgent.
    pub(crate) fn urgent(&mut self, connection: Connection, at: u64, byte: u8) -> Result<(), Error> {
        let key = self.find(connection, &[Stage::Open, Stage::Opening])?;
        let conn = self.table.at(key);
        if at > conn.announced {
            return Err(Error::NotNow);
        }
        conn.urgent = (at, byte);
        self.say(key, RecordKind::Urgent);
        Ok(())
    }

    /// The reader reads no more.
    pub(crate) fn stop(&mut self, connection: Connection) -> Result<(), Error> {
        let key = self.find(connection, &[Stage::Open, Stage::Opening])?;
        self.say(key, RecordKind::Stop);
        Ok(())
    }

    /// What the other engine is to know of the connection, in place of what was said before.
    pub(crate) fn say_words(&mut self, connection: Connection, words: &[u8]) -> Result<(), Error> {
        let key = self.find(connection, &[Stage::Open])?;
        if words.is_empty() || words.len() > WORDS_MAX {
            return Err(Error::TooMany);
        }
        let conn = self.table.at(key);
        conn.said_count += 1;
        match &mut conn.said {
            Some(said) if said.len() == words.len() => said.copy_from_slice(words),
            said => *said = Some(words.into()),
        }
        self.say(key, RecordKind::Said);
        Ok(())
    }

    fn find(&mut self, connection: Connection, stages: &[Stage]) -> Result<u32, Error> {
        let key = self.table.find(connection.0).ok_or(Error::NotNow)?;
        if stages.contains(&self.table.at(key).stage) { Ok(key) } else { Err(Error::NotNow) }
    }
}

/// In `code` of a connection that lives: its end was announced.
const FIN_SAID: u8 = 1;
