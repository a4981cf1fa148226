//! The budgets: a file with what each operation, and each of its larger parts, took when it was written.

use super::callgrind::Operation;
use harness::{Result, product};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// An operation may take so much more than its budget.
const GROWTH_MAX: f64 = 0.03;
/// Parts below this share of their operation are kept together.
const SHARE_MIN: f64 = 0.01;
const OTHERS: &str = "others";
/// So many parts that grew are named.
const NAMED: usize = 4;

pub(crate) struct Budgets {
    pub(crate) rustc: String,
    operations: BTreeMap<String, Budget>,
}

/// What an operation may take.
struct Budget {
    parts: BTreeMap<String, f64>,
    system_calls: f64,
}

/// An operation beside its budget.
pub(crate) struct Verdict {
    pub(crate) name: String,
    pub(crate) now: f64,
    pub(crate) budget: Option<f64>,
    /// Now, and by the budget.
    pub(crate) system_calls: (f64, f64),
    /// Parts by how much they grew, the greatest growth first.
    growth: Vec<(String, f64)>,
}

fn path() -> PathBuf {
    product::root().join("xtask/instructions.json")
}

impl Budgets {
    pub(crate) fn of(operations: &[Operation], rustc: String) -> Budgets {
        let budget = |operation: &Operation| Budget {
            parts: large_parts(operation),
            system_calls: operation.system_calls,
        };
        let operations = operations.iter().map(|operation| (operation.name.clone(), budget(operation)));
        Budgets { rustc, operations: operations.collect() }
    }

    pub(crate) fn load() -> Result<Budgets> {
        let text =
            std::fs::read_to_string(path()).map_err(|error| format!("{}: {error}", path().display()))?;
        let document: Value = serde_json::from_str(&text)?;
        let parts = |parts: &Map<String, Value>| -> BTreeMap<String, f64> {
            parts.iter().map(|(part, cost)| (part.clone(), cost.as_f64().unwrap_or(0.0))).collect()
        };
        let operations = document["operations"].as_object().ok_or("the budgets have no operations")?;
        let operations = operations.iter().filter_map(|(name, operation)| {
            let system_calls = operation["system_calls"].as_f64().unwrap_or(0.0);
            Some((name.clone(), Budget { parts: parts(operation["parts"].as_object()?), system_calls }))
        });
        let rustc = document["rustc"].as_str().unwrap_or("an unknown compiler").to_owned();
        Ok(Budgets { rustc, operations: operations.collect() })
    }

    pub(crate) fn store(&self) -> Result<()> {
        let rounded = |value: f64| (value * 10.0).round() / 10.0;
        let operation = |budget: &Budget| {
            let total: f64 = budget.parts.values().sum();
            let parts: Map<String, Value> =
                budget.parts.iter().map(|(part, cost)| (part.clone(), json!(rounded(*cost)))).collect();
            json!({"total": rounded(total), "system_calls": rounded(budget.system_calls), "parts": parts})
        };
        let operations: Map<String, Value> =
            self.operations.iter().map(|(name, budget)| (name.clone(), operation(budget))).collect();
        let document = json!({"rustc": self.rustc, "operations": operations});
        std::fs::write(path(), serde_json::to_string_pretty(&document)? + "\n")?;
        println!("wrote {}", path().display());
        Ok(())
    }

    pub(crate) fn judge(&self, operation: &Operation) -> Verdict {
        let now = large_parts(operation);
        let none = BTreeMap::new();
        let before = self.operations.get(&operation.name);
        let was = before.map_or(&none, |budget| &budget.parts);
        // A part that has come or gone above the least share stands in `others` on the other side; near enough.
        let mut growth: Vec<(String, f64)> = now
            .iter()
            .map(|(part, cost)| (part.clone(), cost - was.get(part).unwrap_or(&0.0)))
            .filter(|(_, grown)| *grown > 0.5)
            .collect();
        growth.sort_by(|a, b| b.1.total_cmp(&a.1));
        growth.truncate(NAMED);
        let budget = before.map(|budget| budget.parts.values().sum());
        let calls = (operation.system_calls, before.map_or(0.0, |budget| budget.system_calls));
        Verdict { name: operation.name.clone(), now: operation.total(), budget, system_calls: calls, growth }
    }
}

fn large_parts(operation: &Operation) -> BTreeMap<String, f64> {
    let least = operation.total() * SHARE_MIN;
    let mut parts = BTreeMap::new();
    for (part, cost) in &operation.parts {
        let key = if *cost >= least { part } else { OTHERS };
        *parts.entry(key.to_owned()).or_default() += cost;
    }
    parts
}

impl Verdict {
    /// In percent of the budget.
    pub(crate) fn change(&self) -> Option<f64> {
        self.budget.map(|budget| (self.now / budget - 1.0) * 100.0)
    }

    /// An operation without a budget has grown from nothing.
    pub(crate) fn has_grown(&self) -> bool {
        self.change().is_none_or(|change| change > GROWTH_MAX * 100.0) || self.makes_more_calls()
    }

    /// Budgets are rounded, and some calls are made seldom.
    fn makes_more_calls(&self) -> bool {
        self.system_calls.0 > self.system_calls.1 + 0.15
    }

    /// What to say about it beside the table.
    pub(crate) fn remark(&self) -> String {
        let grown: Vec<String> = self.growth.iter().map(|(part, by)| format!("{part} by {by:.1}")).collect();
        match self.change() {
            None => format!("{}: has no budget\n", self.name),
            Some(_) if self.makes_more_calls() => {
                let (now, budget) = self.system_calls;
                format!("{}: {now:.2} system calls instead of {budget:.2}\n", self.name)
            }
            Some(_) if self.has_grown() => format!("{}: grown: {}\n", self.name, grown.join(", ")),
            Some(change) if change < -GROWTH_MAX * 100.0 => {
                format!("{}: less than its budget; keep that: cargo xtask instructions --write\n", self.name)
            }
            Some(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(parts: &[(&str, f64)]) -> Operation {
        let parts = parts.iter().map(|(part, cost)| ((*part).to_owned(), *cost)).collect();
        Operation { name: "send".to_owned(), parts, system_calls: 0.0 }
    }

    #[test]
    fn growth_beyond_three_percent_fails_and_is_named() {
        let budgets = Budgets::of(&[operation(&[("a (x)", 60.0), ("b (y)", 40.0)])], String::new());
        assert!(!budgets.judge(&operation(&[("a (x)", 62.9), ("b (y)", 40.0)])).has_grown());
        let verdict = budgets.judge(&operation(&[("a (x)", 60.0), ("b (y)", 43.1)]));
        assert!(verdict.has_grown() && verdict.remark().contains("b (y) by 3.1"), "{}", verdict.remark());
        let less = budgets.judge(&operation(&[("a (x)", 50.0), ("b (y)", 40.0)]));
        assert!(!less.has_grown() && less.remark().contains("--write"));
    }

    #[test]
    fn an_operation_without_a_budget_fails() {
        let budgets = Budgets::of(&[], String::new());
        assert!(budgets.judge(&operation(&[("a (x)", 1.0)])).has_grown());
    }

    #[test]
    fn one_system_call_more_fails() {
        let cheap = operation(&[("a (x)", 60.0)]);
        let budgets = Budgets::of(&[operation(&[("a (x)", 60.0)])], String::new());
        assert!(!budgets.judge(&cheap).has_grown());
        let verdict = budgets.judge(&Operation { system_calls: 1.0, ..cheap });
        assert!(verdict.has_grown() && verdict.remark().contains("1.00 system calls"));
    }

    #[test]
    fn small_parts_stand_together() {
        let parts = large_parts(&operation(&[("a (x)", 99.0), ("b (y)", 0.5), ("c (y)", 0.5)]));
        assert_eq!(parts.get(OTHERS), Some(&1.0));
        assert_eq!(parts.len(), 2);
    }
}
