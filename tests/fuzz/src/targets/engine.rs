//! Another host's engine, and local processes, as our engine meets them: see `sd_engine::testing`.

pub(super) fn seeds() -> Vec<Vec<u8>> {
    // It asks; the loop promises a slot; its process is there; the local one answers; bytes and words come.
    let begin = [&[0, 0, 1, 0, 12, 15, 12, 15][..], &syn(0), &[12, 15, 6, 0, 0, 0, 1, 15, 12]].concat();
    let message = [2, 2, 0, 1, 8, 8, 0, 12, 15, 12];
    let words = [0, 6, 0, 0, 0, 4, 0, 0, 0, 0, 12, 15, 12];
    let answer = [6, 0, 0, 1, 40, 9, 0, 0, 2, 90, 15, 12];
    // One of ours is offered, taken, and shown.
    let ours = [10, 2, 7, 12, 0, 1, 200, 12, 15, 6, 1, 0, 0, 7, 15, 12, 6, 1, 0, 1, 40, 15, 12];
    let by_datagrams = [0, 13, 7, 1, 12, 12, 0, 13, 0, 1, 0, 13, 1, 0];
    vec![
        [&begin[..], &message, &answer, &message, &words].concat(),
        ours.to_vec(),
        [&begin[..], &[11, 3, 9, 9, 20, 1, 30, 2], &message].concat(),
        [&begin[..], &[10, 0, 1], &ours].concat(),
        [&begin[..], &by_datagrams, &message, &message, &[13, 2], &message, &[12, 15]].concat(),
        [&begin[..], &message, &[0, 13, 5, 0], &message].concat(),
        // A question is taken back before it is answered.
        vec![0, 0, 1, 0, 12, 0, 12, 0, 0, 0, 12, 12, 12, 12, 12, 15, 12],
        early(1, 12),
        early(22, 60),
    ]
}

/// The other end's process is there.
fn syn(at: u8) -> [u8; 10] {
    [0, 6, at, 0, 0, 1, 0, 0, 0, 0]
}

/// Much comes for many connections, of which the beginning is late.
fn early(connections: u8, rounds: usize) -> Vec<u8> {
    let mut input = Vec::new();
    for at in 0..connections {
        input.extend([&[0, 0, 1, 0, 12, 15, 12][..], &syn(at), &[12, 15]].concat());
    }
    (0..connections).for_each(|at| input.extend([0, 11, at]));
    input.extend([13, 1 + 2 * connections, 15]);
    input.extend([13, 3, 15].repeat(rounds));
    input.extend([12, 15, 12]);
    input
}
