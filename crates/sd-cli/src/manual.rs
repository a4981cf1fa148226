//! Man pages and completions, from the one definition of the command line.

use clap_complete::Shell;
use clap_mangen::Man;
use sd_cli::cli::definition;
use sd_cli::failure::{Context, Result, print};
use std::path::Path;

/// Prints a completion script.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition(), "sd", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints sd(1), or writes a page for it and for each of its commands.
pub(crate) fn man(dir: Option<&Path>) -> Result<()> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        Man::new(definition()).render(&mut page).context("the man page")?;
        return print(&String::from_utf8_lossy(&page));
    };
    std::fs::create_dir_all(dir).context(dir.display())?;
    clap_mangen::generate_to(definition(), dir).context(dir.display())
}
