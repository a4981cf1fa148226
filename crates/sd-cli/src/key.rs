//! `sd key`: key files of engines (`sd_keys`).

use sd_cli::cli::KeyCommand;
use sd_cli::failure::{Failure, Result, print};
use sd_keys::{FileError, Identity, SharedKey};
use std::path::Path;

pub(crate) fn main(command: &KeyCommand) -> Result<()> {
    match command {
        KeyCommand::New { shared: true, file } => {
            let key = SharedKey::generate().map_err(|error| Failure::new(error.to_string()))?;
            key.write_new(file).map_err(|error| about(file, &error))
        }
        KeyCommand::New { shared: false, file } => {
            let key = Identity::generate().map_err(|error| Failure::new(error.to_string()))?;
            key.write_new(file).map_err(|error| about(file, &error))?;
            print(&format!("{}\n", key.public()))
        }
        KeyCommand::Show { file } => {
            let key = Identity::read(file).map_err(|error| about(file, &error))?;
            print(&format!("{}\n", key.public()))
        }
    }
}

fn about(file: &Path, error: &FileError) -> Failure {
    Failure::new(format!("{}: {error}", file.display()))
}
