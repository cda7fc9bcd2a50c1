//! Against `tests/vectors/quant.json`, computed by the `gguf` Python package (and, for FP8, from the formula).
use super::*;

#[derive(serde::Deserialize)]
struct Vectors {
    dequantize: Vec<Dequantize>,
    quantize: Vec<Quantize>,
}

#[derive(serde::Deserialize)]
struct Dequantize {
    dtype: String,
    bytes: String,
    /// f32 bits, 8 hexadecimal digits each.
    values: String,
}

#[derive(serde::Deserialize)]
struct Quantize {
    dtype: String,
    values: String,
    bytes: String,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../../tests/vectors/quant.json")).expect("committed vectors parse")
}

fn dtype(name: &str) -> DType {
    DType::ALL.into_iter().find(|d| d.name() == name).expect("known format")
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

fn floats(text: &str) -> Vec<f32> {
    (0..text.len() / 8)
        .map(|i| f32::from_bits(u32::from_str_radix(&text[8 * i..8 * i + 8], 16).expect("hex")))
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }).collect()
}

#[test]
fn dequantizes_like_the_reference() {
    let mut seen = Vec::new();
    for case in vectors().dequantize {
        let (dtype, bytes, want) = (dtype(&case.dtype), unhex(&case.bytes), floats(&case.values));
        let mut got = vec![f32::NAN; want.len()];
        dequantize_row(dtype, &bytes, &mut got);
        assert_eq!(bits(&got), bits(&want), "{dtype}");

        // The next blocks of a row continue where the first ends.
        let mut twice = vec![f32::NAN; 2 * want.len()];
        dequantize_row(dtype, &[bytes.clone(), bytes].concat(), &mut twice);
        assert_eq!(bits(&twice), bits(&[want.clone(), want].concat()), "{dtype}, two in a row");
        seen.push(dtype);
    }
    for dtype in DType::ALL {
        assert_eq!(can_dequantize(dtype), seen.contains(&dtype), "{dtype} has no vector");
    }
}

#[test]
fn quantizes_like_the_reference() {
    let mut seen = Vec::new();
    for case in vectors().quantize {
        let (dtype, values, want) = (dtype(&case.dtype), floats(&case.values), unhex(&case.bytes));
        let mut got = vec![0xa5; want.len()];
        quantize_row(dtype, &values, &mut got);
        assert_eq!(got, want, "{dtype}");
        seen.push(dtype);
    }
    for dtype in DType::ALL {
        assert_eq!(can_quantize(dtype), seen.contains(&dtype), "{dtype} has no vector");
    }
}

#[test]
#[should_panic(expected = "do not hold 32 values of q8_0")]
fn a_short_row_is_a_defect() {
    dequantize_row(DType::Q8_0, &[0; 33], &mut [0.0; 32]);
}
