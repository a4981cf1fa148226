//! Shows what would be replaced in a program: `windows FILE`.
#![allow(clippy::unwrap_used)]
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let file = std::fs::read(path).unwrap();
    let word = |at: usize, len: usize| (0..len).rev().fold(0usize, |n, i| n << 8 | usize::from(file[at + i]));
    let (table, count) = (word(32, 8), word(56, 2));
    let texts: Vec<(usize, &[u8])> = (0..count)
        .map(|n| table + 56 * n)
        .filter(|at| word(*at, 4) == 1 && word(*at + 4, 4) == 5)
        .map(|at| (word(at + 16, 8), &file[word(at + 8, 8)..][..word(at + 32, 8)]))
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
