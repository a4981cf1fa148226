//! Two links in a simulated network: loss, reorder, duplication, corruption, delay, partition, restarts, slow readers.
//!
//! Everything follows from a seed. `SD_LINK_SEED=N` runs one, `SD_LINK_SEEDS=N` so many.

mod desk;
mod world;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn seeds() {
    let one = number("SD_LINK_SEED");
    let seeds = match one {
        Some(seed) => seed..seed + 1,
        None => 0..number("SD_LINK_SEEDS").unwrap_or(200),
    };
    let mut sums = [0; 7];
    for seed in seeds {
        let mut world = world::World::new(seed);
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run())) {
            eprintln!("again with SD_LINK_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
        for (sum, count) in sums.iter_mut().zip(world.counts()) {
            *sum += count;
        }
    }
    let [bytes, closed, lost_connections, lost_records, forged, again, placed] = sums;
    println!(
        "{bytes} bytes, of these {placed} placed, {closed} connections closed, {lost_connections} lost with their session"
    );
    println!("{lost_records} records lost, {forged} packets forged, {again} late or twice");
    assert!(one.is_some() || sums.iter().all(|sum| *sum > 100), "something never happened: {sums:?}");
}
