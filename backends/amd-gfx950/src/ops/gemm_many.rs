//! Tiles of products of programs of more than 16 tokens with bf16 factors (`kernels/gemm_many.py`).
//!
//! The tile is the one that `benches/modelled` would find quickest: what decides is L1 or the matrix units of the busiest compute unit, or
//! memory, of which few work-groups draw less. Where tiles are as quick, it is the one that L2s serve least for. Every tile walks K
//! alike, so the choice changes no bit.

/// Rows and columns of tiles, as `kernels/variants.py` lists them.
const TILES: [(u32, u32); 4] = [(32, 32), (32, 64), (64, 64), (128, 256)];
/// Rows of tiles that go round in bands of their own (`tile_of`).
const TALL: u32 = 128;
/// Dies, whole rounds of which a grid's columns are.
const DIES: usize = 8;
/// Compute units.
const UNITS: u64 = 256;
/// Bytes per cycle of a compute unit's L1, of memory for one of them, and for all.
const RATES: [u64; 3] = [64, 20, 3333];
/// Multiply-adds per cycle of a compute unit.
const PRODUCTS: u64 = 2048;

/// Rows and columns of a work-group's tile for so many tokens and rows of weights.
pub(super) fn tile(tokens: u32, n: usize) -> (u32, u32) {
    quickest(&TILES, tokens, n)
}

/// The same of tiles of 32 rows, which are all that some kernels of few tokens have.
pub(super) fn low_tile(tokens: u32, n: usize) -> (u32, u32) {
    quickest(&TILES[..2], tokens, n)
}

fn quickest(tiles: &[(u32, u32)], tokens: u32, n: usize) -> (u32, u32) {
    // Cycles for 64 values of K.
    let cost = |(rows, columns): (u32, u32)| {
        let groups = u64::from(tokens.div_ceil(rows)) * (n as u64).div_ceil(columns.into());
        let fetched = 64 * u64::from(4 * rows + 2 * columns);
        let [cache, unit, all] = RATES;
        let memory = 64 * 2 * n as u64 / (groups * unit).min(all);
        let group = (fetched / cache).max(64 * u64::from(rows * columns) / PRODUCTS);
        (memory.max(groups.div_ceil(UNITS) * group), groups * fetched)
    };
    tiles.iter().copied().min_by_key(|tile| cost(*tile)).expect("there are tiles")
}

/// Work-groups along a grid's columns for so many tiles of so many rows.
pub(super) fn columns(rows: u32, tiles: usize) -> usize {
    if rows < TALL { tiles.next_multiple_of(DIES) } else { tiles }
}

#[cfg(test)]
mod tests {
    use super::{low_tile, tile};

    /// Inputs of KDA and MLA, the way out of the experts and the head of Kimi K3.
    #[test]
    fn tiles_fill_the_device_without_fetching_rows_too_often() {
        assert_eq!([6288, 3648, 7168, 20_480].map(|n| tile(64, n)), [(32, 64), (32, 32), (32, 64), (64, 64)]);
        assert_eq!([6288, 3648, 7168, 20_480].map(|n| tile(32, n)), [(32, 32), (32, 32), (32, 32), (32, 64)]);
        assert_eq!([6288, 3648].map(|n| tile(256, n)), [(64, 64), (64, 64)]);
        // KDA's narrow gates, its input and the way out: tall tiles where they fill the device, or one round of it.
        assert_eq!([128, 6288, 7168].map(|n| tile(8192, n)), [(64, 64), (128, 256), (128, 256)]);
        assert_eq!([300, 512].map(|tokens| tile(tokens, 6288)), [(64, 64), (128, 256)]);
        // As `tests/emulated/moe_edges.rs` takes it for granted.
        let columns = [16_384, 16_656, 16_536];
        assert_eq!(
            [20, 100, 130].map(|tokens| columns.map(|n| tile(tokens, n))),
            [[(32, 64); 3], [(64, 64); 3], [(128, 256); 3]]
        );
        // As `tests/emulated/gate_up.rs` does.
        assert_eq!([224, 10_720].map(|n| low_tile(20, n)), [(32, 32), (32, 64)]);
    }
}
