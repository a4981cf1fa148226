//! Items in processes of their own, several at a time.
//!
//! An item ends what its tests have left running: all that descends from its process. That is why each has one.

use super::Item;
use harness::report::Count;
use harness::{Result, fail};
use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// Suites that write into their sources' folders: their items run one after another.
const IN_PLACE: &[&str] = &["redis", "curl"];

/// Runs items, `jobs` at a time, and prints what each says when it is done.
pub(crate) fn run(items: &[Item], jobs: usize) -> Count {
    let chains = Mutex::new(chains(items));
    let total = Mutex::new(Count::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let next = || chains.lock().ok()?.pop_front();
                while let Some(chain) = next() {
                    for item in chain {
                        let (text, count) = inside(item).unwrap_or_else(|error| {
                            (format!("FAIL {:<36} {error}\n", item.title()), Count::one(false))
                        });
                        let Ok(mut total) = total.lock() else { return };
                        print!("{text}");
                        total.add(count);
                    }
                }
            });
        }
    });
    total.into_inner().unwrap_or(Count::one(false))
}

/// Lists of items that run one after another, long ones first.
fn chains(items: &[Item]) -> VecDeque<Vec<&Item>> {
    let mut chains: Vec<Vec<&Item>> = Vec::new();
    for item in items {
        let is_in_place = IN_PLACE.contains(&item.suite);
        match chains.iter_mut().find(|chain| is_in_place && chain[0].suite == item.suite) {
            Some(chain) => chain.push(item),
            None => chains.push(vec![item]),
        }
    }
    chains.sort_by_key(|chain| std::cmp::Reverse(chain.len()));
    chains.into()
}

/// Runs an item in a process of its own: what it says, without the closing line, and that as numbers.
fn inside(item: &Item) -> Result<(String, Count)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--inside", &item.title()]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (said, last) = text.trim_end().rsplit_once('\n').unwrap_or(("", &text));
    let Some(count) = Count::parse(last) else { fail!("the item's process ended with {}", output.status) };
    Ok((format!("{said}\n"), count))
}

#[cfg(test)]
mod tests {
    use super::super::{Choice, Outcomes, stage::Stage};
    use super::*;

    fn nothing(_: &Stage, _: &Item, _: &Choice) -> Result<Outcomes> {
        Ok(Outcomes::new())
    }

    #[test]
    fn what_shares_a_folder_is_one_chain() {
        let item = |suite, name| Item { suite, name, needs: &[], is_fast: false, source: None, run: nothing };
        let items = [item("perl", "a"), item("redis", "b"), item("node", "c"), item("redis", "d")];
        let names: Vec<Vec<&str>> =
            chains(&items).iter().map(|chain| chain.iter().map(|item| item.name).collect()).collect();
        assert_eq!(names, [vec!["b", "d"], vec!["a"], vec!["c"]]);
    }
}
