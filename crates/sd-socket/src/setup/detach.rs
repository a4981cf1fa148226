//! The monitor says that the process is about to be checkpointed: its connections go back (`family::detach` does the rest).

use crate::process::detaching;
use sd_proto::Ip;

/// The caller holds no lock. Asked again, what could not go back before goes back.
pub(super) fn asked() {
    if detaching::ask() || detaching::is_asked() {
        super::demote::asked((Ip([0; 16]), 0), true, sd_shm::slab::Moved::Asked);
    }
}
