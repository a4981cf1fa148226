//! Running a server as another user: some refuse to be root.

use crate::lab::{Lab, Side};
use crate::process::Proc;
use crate::{Result, fail, product};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

/// A user of this system, and a place of its own in the laboratory.
pub struct User {
    id: nix::unistd::User,
}

impl User {
    /// `name`, or whoever runs this when that is not root and cannot become somebody else.
    pub fn named(name: &str) -> Result<User> {
        let own = nix::unistd::geteuid();
        let id = if own.is_root() {
            nix::unistd::User::from_name(name)?
        } else {
            nix::unistd::User::from_uid(own)?
        };
        match id {
            Some(id) => Ok(User { id }),
            None => fail!("there is no user {name}"),
        }
    }

    /// Makes a directory that belongs to the user.
    pub fn directory(&self, lab: &Lab, name: &str) -> Result<String> {
        let path = lab.path().join(name);
        std::fs::create_dir(&path)?;
        self.own(&path)?;
        Ok(path.display().to_string())
    }

    pub fn own(&self, path: &Path) -> Result<()> {
        Ok(chown(path, Some(self.id.uid.as_raw()), Some(self.id.gid.as_raw()))?)
    }

    /// A command on a side, as this user and without any other group. The library is read from a place where
    /// everybody may.
    pub fn command(&self, lab: &Lab, side: Side, program: &str, args: &[&str]) -> Result<Command> {
        let library = lab.path().join("libsd.so");
        if side == Side::Sd && !lab.is_oracle() && !library.exists() {
            std::fs::copy(product::libsd(), &library)?;
        }
        let (uid, gid) = (self.id.uid.to_string(), self.id.gid.to_string());
        let mut all = vec!["--reuid", &uid, "--regid", &gid, "--clear-groups", "--", program];
        if !nix::unistd::geteuid().is_root() {
            all.drain(..all.len() - 1);
        }
        all.extend(args);
        let (first, rest) = all.split_first().ok_or("no program")?;
        let mut command = if nix::unistd::geteuid().is_root() {
            lab.command(side, "setpriv", &all)?
        } else {
            lab.command(side, first, rest)?
        };
        command.env("SD_LIB", library);
        Ok(command)
    }

    pub fn serve(&self, lab: &Lab, side: Side, port: u16, program: &str, args: &[&str]) -> Result<Proc> {
        let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or("server");
        let mut server = Proc::start(&mut self.command(lab, side, program, args)?, name, lab.path())?;
        server.wait_listening(port)?;
        Ok(server)
    }
}
