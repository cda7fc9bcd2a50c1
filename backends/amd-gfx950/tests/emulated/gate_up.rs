//! Gate, up and what a gated activation makes of both, as one launch of a program: the bits of the launches that it stands for, and those of
//! a token in every tile; and the launches in parts where one cannot be.

use tokenspeed_backend_api::{
    abi::ts_step_row,
    dtype::DType,
    graph::Vary,
    op::{Attrs, OpKind},
    tensor::Tensor,
};

use crate::{
    replay::{Bench, attrs},
    support::{Bytes, Launches, Random, backend_device, configure, emulator, f32s},
};

/// Rows of gate, and so of up: few, and the least of which more than 16 tokens take tiles of 64 columns of both, with half a tile left over.
const WIDTHS: [u64; 2] = [112, 5360];
/// Values per row of the input, ragged beside steps of 64: more than a ring of four steps where weights have few rows, and whole groups of e4m3 ones.
const K: [u64; 2] = [352, 80];

/// Where the activation goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Own,
    Gate,
    Up,
    /// Over the input that both products read.
    Input,
    /// Over gate, but not value by value: of one token, whose values one wave reads before it writes any, still right in parts.
    Across,
}

/// A program, and how the two products and the activation lie in it.
struct Case {
    tokens: usize,
    width: u64,
    kind: OpKind,
    place: Place,
    /// The products are in the other order.
    swapped: bool,
    bias: bool,
}

impl Case {
    fn of(tokens: usize, width: u64, kind: OpKind, place: Place) -> Self {
        Self { tokens, width, kind, place, swapped: false, bias: false }
    }
}

/// What is wrong with the first case that fails; `None` without kernels.
fn found(options: &[(&str, &str)], cases: &[(Case, &[&str])]) -> Option<Result<(), String>> {
    let launches = Launches::recorded();
    let (_backend, device) = backend_device(options)?;
    configure(emulator(), true, 4);
    let mut seen: Vec<(u64, OpKind, Vec<u8>)> = Vec::new();
    for (case, want) in cases {
        let (t, n) = (case.tokens as u64, case.width);
        let k = K[usize::from(n == WIDTHS[1])];
        let mut names = Vec::new();
        // Twice: as ops one by one, and as a program.
        let [alone, program] = [false, true].map(|program| {
            let mut bench = Bench::new(&device);
            let mut random = Random(31);
            let weights = [(); 2].map(|()| {
                let values = random.bf16((n * k) as usize).bytes();
                bench.place(DType::BF16, Vary::Fixed, &[n, k], Some(values))
            });
            let bias: Vec<f32> = (0..n).map(|_| random.unit()).collect();
            let bias = bench.place(DType::F32, Vary::Fixed, &[n], Some(bias.bytes()));
            let mut random = Random(32);
            // The same first rows in every case.
            let values: Vec<f32> = (0..t * k).map(|_| random.unit() * 2.0).collect();
            let x = bench.place(DType::F32, Vary::Tokens, &[t, k], Some(values.bytes()));
            let room = bench.place(DType::F32, Vary::Tokens, &[t, n], None);
            let gate = bench.place(DType::F32, Vary::Tokens, &[t, n], None);
            let up = bench.place(DType::F32, Vary::Tokens, &[t, n], None);
            let own = bench.place(DType::F32, Vary::Tokens, &[t, n], None);
            let h = match case.place {
                Place::Own => own,
                Place::Gate => gate,
                Place::Up => up,
                Place::Input => Tensor { offset: x.offset, ..room },
                Place::Across => Tensor { offset: gate.offset - 4 * 16, ..gate },
            };
            bench.load();
            let product = |w: Tensor, y: Tensor| match case.bias {
                true => (OpKind::Gemm, vec![x, w, bias, y], attrs(&[1], &[])),
                false => (OpKind::Gemm, vec![x, w, y], Attrs::default()),
            };
            let mut ops = vec![product(weights[0], gate), product(weights[1], up)];
            if case.swapped {
                ops.reverse();
            }
            let limits = if case.kind == OpKind::SituMul { attrs(&[], &[4.0, 25.0]) } else { Attrs::default() };
            ops.push((case.kind, vec![gate, up, h], limits));
            launches.take();
            if program {
                bench.run_program(case.tokens, &ops);
                names = launches.take().into_iter().filter(|k| k != "quantise").collect::<Vec<_>>();
            } else {
                bench.run(ts_step_row { query_len: case.tokens as u32, ..Default::default() }, &ops);
            }
            [gate, up, h].map(|made| bench.read(&made))
        });
        let what = format!("{} tokens, {n} columns, {:?}, {:?}", case.tokens, case.kind, case.place);
        if names != *want {
            return Some(Err(format!("{what}: {names:?} are launched, {want:?} said")));
        }
        if alone != program {
            return Some(Err(format!("{what}: a program gives other bits than its ops")));
        }
        let made = f32s(&alone[2]);
        assert!(made.iter().all(|v| v.is_finite()) && made.iter().any(|v| *v != 0.0), "{what}");
        if case.bias {
            continue;
        }
        let row = &alone[2][..Tensor::new(DType::F32, Vary::Tokens, &[1, n]).bytes() as usize];
        match seen.iter().find(|(width, kind, _)| (*width, *kind) == (n, case.kind)) {
            Some((.., first)) => assert!(row == first, "{what}: a row has other bits than among other tokens"),
            None => seen.push((n, case.kind, row.to_vec())),
        }
    }
    Some(Ok(()))
}

/// One case, as short as can be.
pub fn few() -> Option<Result<(), String>> {
    found(&[], &[(Case::of(3, WIDTHS[0], OpKind::SiluMul, Place::Own), &["gate_up"])])
}

fn run(options: &[(&str, &str)], cases: &[(Case, &[&str])]) {
    found(options, cases).unwrap_or(Ok(())).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn gate_up_and_activation_are_one_launch_with_the_bits_of_its_parts() {
    use OpKind::{SiluMul, SituMul};
    let [narrow, wide] = WIDTHS;
    let one: &[&str] = &["gate_up"];
    let parts: &[&str] = &["several", "gated"];
    run(
        &[],
        &[
            (Case::of(3, narrow, SiluMul, Place::Own), one),
            (Case::of(16, narrow, SituMul, Place::Up), one),
            (Case::of(20, narrow, SiluMul, Place::Gate), one),
            (Case { swapped: true, ..Case::of(64, narrow, SituMul, Place::Own) }, one),
            (Case::of(1, wide, SiluMul, Place::Own), one),
            (Case::of(20, wide, SiluMul, Place::Own), one),
            // What cannot be one.
            (Case::of(3, narrow, SiluMul, Place::Input), parts),
            (Case::of(1, narrow, SiluMul, Place::Across), parts),
            (Case::of(65, narrow, SiluMul, Place::Own), parts),
            (Case::of(3, narrow + 8, SiluMul, Place::Own), parts),
            (Case { bias: true, ..Case::of(3, narrow, SiluMul, Place::Own) }, &["linear", "linear", "gated"]),
        ],
    );
}

#[test]
fn quantised_gate_and_up_are_launches_in_parts() {
    run(&[("precision", "fp8")], &[(Case::of(3, 160, OpKind::SiluMul, Place::Own), &["several", "gated"])]);
}
