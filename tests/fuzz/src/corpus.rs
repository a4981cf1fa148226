//! Inputs as lines of hexadecimal digits, which can be read and merged.

use std::io;
use std::path::Path;

pub(crate) fn read(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    let inputs: Option<Vec<Vec<u8>>> =
        text.lines().filter(|line| !line.starts_with('#')).map(bytes).collect();
    inputs.ok_or_else(|| io::Error::other(format!("{}: a line is not hexadecimal", path.display())))
}

fn bytes(line: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = line.trim().chars().map(|c| Some(c.to_digit(16)? as u8)).collect();
    Some(digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

pub(crate) fn write(path: &Path, inputs: &[Vec<u8>]) -> io::Result<()> {
    let mut text =
        String::from("# Inputs of `cargo xtask fuzz`, each of which reaches something that no other does.\n");
    for input in inputs {
        input.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
        text.push('\n');
    }
    std::fs::write(path, text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_are_inputs() {
        assert_eq!(super::bytes("00ff1A"), Some(vec![0, 255, 26]));
        assert_eq!(super::bytes("0g"), None);
        assert_eq!(super::bytes(""), Some(vec![]));
    }
}
