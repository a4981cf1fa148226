//! Shows what would be replaced in a program: `windows FILE`.
#![allow(clippy::unwrap_used)]

use sd_attach::elf;

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let file = std::fs::read(path).unwrap();
    let (headers, _) = elf::table(&file).unwrap();
    let is_text = |entry: &elf::Entry| entry.kind == libc::PT_LOAD && entry.flags == libc::PF_R | libc::PF_X;
    let texts: Vec<(usize, &[u8])> = elf::entries(headers)
        .filter(is_text)
        .map(|text| (text.address as usize, &file[text.offset as usize..][..text.file_len as usize]))
        .collect();
    let find = || {
        let start = std::time::Instant::now();
        let found = sd_attach::windows::windows(texts.iter().map(|text| text.1));
        (start.elapsed(), found)
    };
    let (took, found) = (0..9).map(|_| find()).min_by_key(|found| found.0).unwrap();
    println!("{took:?}");
    match found {
        Err(refusal) => println!(
            "{refusal:x?}; texts begin at {:x?}",
            texts.iter().map(|text| text.0).collect::<Vec<_>>()
        ),
        Ok(found) => {
            println!("{} windows", found.all().len());
            for window in found.all() {
                println!(
                    "{:x} {} {}",
                    texts[usize::from(window.text)].0 + window.at as usize,
                    window.len,
                    window.instruction_at
                );
            }
        }
    }
}
