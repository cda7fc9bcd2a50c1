//! `table_update`: apply the step's block-table deltas.

use tokenspeed_backend_api::abi::ts_table_delta;

/// A delta that points outside its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block-table delta {delta}: row {row}, index {index} lies outside the table of {rows} × {blocks_per_row}")]
pub struct BadDelta {
    /// Index among the step's deltas.
    pub delta: usize,
    /// Its table row.
    pub row: u32,
    /// Its index in the row.
    pub index: u32,
    /// Rows of the table.
    pub rows: usize,
    /// Entries per row.
    pub blocks_per_row: usize,
}

/// Write the deltas of `component` into its table, `[rows, blocks_per_row]`, in order. Run on one worker. All deltas
/// are checked first, so an error leaves the table as it was.
pub fn table_update(
    table: &mut [u32],
    blocks_per_row: usize,
    component: u32,
    deltas: &[ts_table_delta],
) -> Result<(), BadDelta> {
    let rows = table.len() / blocks_per_row;
    let mine = |d: &&ts_table_delta| d.component == component;
    for (delta, d) in deltas.iter().enumerate().filter(|(_, d)| d.component == component) {
        if d.table_row as usize >= rows || d.index as usize >= blocks_per_row {
            return Err(BadDelta { delta, row: d.table_row, index: d.index, rows, blocks_per_row });
        }
    }
    for d in deltas.iter().filter(mine) {
        table[d.table_row as usize * blocks_per_row + d.index as usize] = d.block;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(component: u32, table_row: u32, index: u32, block: u32) -> ts_table_delta {
        ts_table_delta { component, table_row, index, block }
    }

    #[test]
    fn later_deltas_win_and_other_components_are_left_alone() {
        let mut table = vec![0u32; 6];
        let deltas = [delta(0, 1, 2, 9), delta(1, 0, 0, 5), delta(0, 1, 2, 7)];
        table_update(&mut table, 3, 0, &deltas).unwrap();
        assert_eq!(table, [0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn a_bad_delta_is_named_and_changes_nothing() {
        let mut table = vec![0u32; 6];
        let error = table_update(&mut table, 3, 0, &[delta(0, 0, 0, 1), delta(0, 2, 0, 1)]).unwrap_err();
        assert_eq!((error.delta, error.row), (1, 2));
        assert_eq!(table, [0; 6]);
    }
}
