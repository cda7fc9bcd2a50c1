//! Prints the disassembly of a code object: byte offset, dwords, text.

fn main() {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: listing <file.hsaco>");
        std::process::exit(2);
    };
    let memory = amdhip64::machine::Memory::default();
    let loaded = std::fs::read(&path)
        .map_err(|e| e.to_string())
        .and_then(|bytes| amdhip64::code::Object::load(&bytes, &memory).map_err(|e| e.to_string()));
    match loaded {
        Ok(object) => {
            for kernel in object.kernels.values() {
                println!("{}:", kernel.name);
                for (offset, words, text) in kernel.listing() {
                    let words: Vec<String> = words.iter().map(|w| format!("{w:08x}")).collect();
                    println!("{offset:6x}: {text:70} // {}", words.join(" "));
                }
            }
        }
        Err(e) => {
            eprintln!("{path}: {e}");
            std::process::exit(1);
        }
    }
}
