//! `kda_record` and `kda_replay`: keeping the inputs of candidate tokens, and advancing states over the accepted ones.
//!
//! The replay's gate projection rounds its factors as `gemm` does, and walks them in the same order: the state it leaves has
//! the bits that decoding would have left. The window moves in a launch of its own, behind the one that reads it.

use tokenspeed_backend_api::{
    catalogue::OpDesc,
    dtype::DType,
    op::OpKind,
    sdk::{Fault, Support},
};

use super::{
    BoundOp, OpEntry,
    convert::format_name,
    float, gemm, int,
    kda::{REQUESTS, VALUES},
    panels,
};
use crate::{
    kernel::{Extent, Plan},
    settings::Settings,
};

/// Channels per work-group that moves windows, its kernel's `B`.
const PANEL: usize = 256;
/// Longest head of the kernel for any size, and the head and gate width of the kernel for one size.
const SMALL: u64 = 32;
const FULL: u64 = 128;
/// Index of the gate projection's weight.
const WF: usize = 4;

inventory::submit! {
    OpEntry {
        kind: OpKind::KdaRecord,
        support: |op, _| Support::yes(record_kernel(op.operands[5].dtype)),
        plan: plan_record,
        pack: None,
    }
}
inventory::submit! { OpEntry { kind: OpKind::KdaReplay, support, plan, pack: Some(gemm::expand) } }

fn record_kernel(record: DType) -> String {
    format!("kda_record_{}", format_name(record).expect("the catalogue allows three plain formats"))
}

fn plan_record(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [q, k, v, f, b, record] = op.operands else { unreachable!("checked") };
    let arguments = [
        op.step(),
        ("q", q.pointer()),
        ("k", k.pointer()),
        ("v", v.pointer()),
        ("f", f.pointer()),
        ("b", b.pointer()),
        ("record", record.pointer()),
        ("C", q.row_len()),
        ("F", f.row_len()),
        ("H", b.row_len()),
        ("ldq", q.stride()),
        ("ldk", k.stride()),
        ("ldv", v.stride()),
        ("ldf", f.stride()),
        ("ldb", b.stride()),
        ("ldr", record.stride()),
    ];
    Ok(plan.launch(&record_kernel(record.tensor.dtype), [q.rows(1), Extent::ONE, Extent::ONE], &arguments)?)
}

fn support(op: &OpDesc, settings: &Settings) -> Support {
    let (record, wf, window, state) = (&op.operands[0], &op.operands[WF], &op.operands[7], &op.operands[8]);
    let formats = (record.dtype, window.dtype);
    let known = [(DType::F32, DType::F32), (DType::BF16, DType::F32), (DType::BF16, DType::BF16)];
    if !known.contains(&formats) {
        return Support::no(format!(
            "a record of {} with a window of {}: f32 or bf16 both, or bf16 with f32",
            formats.0, formats.1
        ));
    }
    let (d, gate_width) = (state.dims[3], wf.row_len());
    if d > SMALL && (d, gate_width) != (FULL, FULL as usize) {
        return Support::no(format!("heads of {d} with a gate of {gate_width}: at most {SMALL}, or {FULL} both"));
    }
    let name = format!("kda_replay, {} factors of the gate", settings.factors());
    let mut support = settings.rounded(Support::yes(name));
    support.packs.extend(gemm::packing(op, WF, settings));
    support
}

fn plan(op: &BoundOp<'_>, plan: &mut Plan<'_>) -> Result<(), Fault> {
    let [record, _, wk, wv, wf, a_log, dt_bias, window, state] = op.operands else { unreachable!("checked") };
    let (heads, d, gate_width) = (a_log.tensor.dims[0], state.tensor.dims[3], wf.tensor.row_len());
    let (format, ldf) = gemm::stored(&wf.tensor);
    let factors = op.settings.factors();
    let [r, w] = [record, window].map(|x| format_name(x.tensor.dtype).expect("supported"));
    let (attrs, taps) = (op.op.attrs(), wk.tensor.dims[1]);
    let mut arguments = vec![
        op.step(),
        ("record", record.pointer()),
        ("wk", wk.pointer()),
        ("wv", wv.pointer()),
        ("wf", wf.pointer()),
        ("a_log", a_log.pointer()),
        ("dt_bias", dt_bias.pointer()),
        ("window", window.pointer()),
        ("state", state.pointer()),
        ("H", int(heads)),
        ("W", int(taps)),
        ("ldr", record.stride()),
        ("ldf", int(ldf)),
        ("ldw", window.stride()),
        ("lds", state.stride()),
        ("bounded", int(attrs.i[0] as usize)),
        ("bound", float(attrs.f[0])),
        ("eps", float(attrs.f[1])),
    ];
    let name = format!("kda_replay_{r}_{w}_{format}_{factors}");
    let kernel = if d as u64 == FULL {
        format!("{name}_full")
    } else {
        arguments.extend([("D", int(d)), ("F", int(gate_width))]);
        format!("{name}_{SMALL}")
    };
    plan.launch(
        &kernel,
        [REQUESTS, Extent::Fixed(heads as u32), Extent::Fixed(d.div_ceil(VALUES) as u32)],
        &arguments,
    )?;
    let channels = heads * d;
    let arguments = [
        op.step(),
        ("record", record.pointer()),
        ("window", window.pointer()),
        ("C", int(channels)),
        ("width", int(record.tensor.dims[2])),
        ("W", int(taps)),
        ("ldr", record.stride()),
        ("ldw", window.stride()),
    ];
    let grid = [REQUESTS, panels(3 * channels, PANEL), Extent::ONE];
    Ok(plan.launch(&format!("kda_replay_window_{r}_{w}"), grid, &arguments)?)
}
