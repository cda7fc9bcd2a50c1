//! Tensor infos and the data they point to.

use super::{
    super::{
        error::{Fault, TensorFault, quoted},
        tensor::Tensor,
    },
    cursor::Cursor,
    types,
};

/// Read `n` infos and hold them against the rest of the file. Tensors come back in order of their data.
pub(super) fn read(cursor: &mut Cursor, n: u64, alignment: u64) -> Result<Vec<Tensor>, Fault> {
    // Name length, rank, one dimension, type, offset.
    let n = cursor.count(n, 8 + 4 + 8 + 4 + 8, "tensors")?;
    let mut tensors = Vec::new();
    for i in 0..n {
        tensors.push(read_info(cursor, i, alignment)?);
    }
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Fault::tensor(pair[0], TensorFault::Duplicate));
    }

    let data_start = cursor.position().next_multiple_of(alignment);
    let actual = cursor.file_bytes();
    tensors.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    let mut end = 0u64;
    for (i, tensor) in tensors.iter().enumerate() {
        let padded = end.next_multiple_of(alignment);
        if tensor.offset < end {
            return Err(Fault::tensor(&tensor.name, TensorFault::Overlap(quoted(&tensors[i - 1].name))));
        }
        if tensor.offset != padded {
            return Err(Fault::tensor(&tensor.name, TensorFault::Hole { start: tensor.offset, previous: end }));
        }
        end = tensor.offset + tensor.bytes;
        if data_start + end > actual {
            let what = format!("tensor `{}`", quoted(&tensor.name));
            return Err(Fault::Truncated { what, expected: data_start + end, actual });
        }
    }
    for tensor in &mut tensors {
        tensor.offset += data_start;
    }
    Ok(tensors)
}

/// One info; its offset is still relative to the data. Offset and size are below 2^62, so sums of the two cannot wrap.
fn read_info(cursor: &mut Cursor, i: usize, alignment: u64) -> Result<Tensor, Fault> {
    let name = cursor.string(&format!("the name of tensor {i}"))?;
    let what = format!("the description of tensor `{}`", quoted(name));
    let fail = |cause| Err(Fault::tensor(name, cause));
    let rank = cursor.u32(&what)?;
    if !(1..=4).contains(&rank) {
        return fail(TensorFault::Rank(rank));
    }
    let mut shape = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        shape.push(cursor.u64(&what)?);
    }
    let row = shape[0];
    shape.reverse();
    let number = cursor.u32(&what)?;
    let offset = cursor.u64(&what)?;
    let Some((format, block, block_bytes)) = types::block(number) else {
        return fail(TensorFault::UnknownType(number.to_string()));
    };
    if shape.contains(&0) {
        return fail(TensorFault::ZeroDimension(shape));
    }
    let Some(values) = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d)) else {
        return fail(TensorFault::Overflow(shape));
    };
    if !row.is_multiple_of(block) {
        return fail(TensorFault::PartialBlock { row, block, format: format.name() });
    }
    let Some(bytes) = (values / block).checked_mul(block_bytes).filter(|b| *b < 1 << 62) else {
        return fail(TensorFault::Overflow(shape));
    };
    if !offset.is_multiple_of(alignment) {
        return fail(TensorFault::Misaligned { offset, alignment });
    }
    if offset >= 1 << 62 {
        let what = format!("tensor `{}`", quoted(name));
        return Err(Fault::Truncated { what, expected: offset.saturating_add(bytes), actual: cursor.file_bytes() });
    }
    Ok(Tensor { name: name.to_owned(), format, shape, region: 0, offset, bytes })
}
