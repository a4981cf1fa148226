//! Connections by number; a number is not given twice soon.

use crate::connection::Connection;

/// See the module.
#[derive(Default)]
pub(crate) struct Connections {
    places: Vec<(u32, Option<Box<Connection>>)>,
    free: Vec<u32>,
    pub(crate) count: usize,
}

impl Connections {
    pub(crate) fn add(&mut self, connection: Connection) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        self.count += 1;
        let place = &mut self.places[at as usize];
        place.1 = Some(Box::new(connection));
        u64::from(place.0) << 32 | u64::from(at)
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<&mut Connection> {
        let (serial, connection) = self.places.get_mut(id as u32 as usize)?;
        if u64::from(*serial) == id >> 32 { connection.as_deref_mut() } else { None }
    }

    /// It is needed soon.
    pub(crate) fn soon(&self, id: u64) {
        if let Some((_, Some(connection))) = self.places.get(id as u32 as usize) {
            sd_sys::mem::prefetch(&raw const **connection);
        }
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        let all = self.places.iter().enumerate().filter(|(_, place)| place.1.is_some());
        all.map(|(at, place)| u64::from(place.0) << 32 | at as u64).collect()
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Box<Connection>> {
        self.get(id)?;
        let place = &mut self.places[id as u32 as usize];
        place.0 = place.0.wrapping_add(1);
        self.free.push(id as u32);
        self.count -= 1;
        place.1.take()
    }
}
