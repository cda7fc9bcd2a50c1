//! What MODEL on the command line means.

use std::path::{Path, PathBuf};

use crate::error::CliError;

/// A model on this machine, or a shape to fill with random weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelPath {
    /// A folder with config.json, tokenizer and safetensors.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// A config.json whose weights are random.
    Dummy(PathBuf),
}

impl ModelPath {
    /// The file or folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder(path) | Self::Gguf(path) | Self::Dummy(path) => path,
        }
    }

    /// The name to serve it under unless told otherwise: that it was pulled by, else folder or file name without `.gguf`.
    pub fn default_name(&self) -> String {
        home().ok().and_then(|home| self.pulled_name(&home)).unwrap_or_else(|| self.file_name())
    }

    fn pulled_name(&self, home: &Path) -> Option<String> {
        let inside = self.path().strip_prefix(home.join("models")).ok()?;
        let name = match self {
            Self::Folder(_) => inside,
            Self::Gguf(_) => inside.parent()?,
            Self::Dummy(_) => return None,
        };
        name.to_str().filter(|name| !name.is_empty()).map(str::to_owned)
    }

    fn file_name(&self) -> String {
        let path = self.path();
        let path = match self {
            // A config is called config.json; the folder says which.
            Self::Dummy(path) => path.parent().filter(|folder| folder.file_name().is_some()).unwrap_or(path),
            Self::Folder(_) | Self::Gguf(_) => path,
        };
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let name = if matches!(self, Self::Gguf(_)) { absolute.file_stem() } else { absolute.file_name() };
        name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

/// `TOKENSPEED_HOME`, else `tokenspeed` in the XDG cache folder.
pub fn home() -> Result<PathBuf, CliError> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(home) = set("TOKENSPEED_HOME") {
        return Ok(home);
    }
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache
        .map(|cache| cache.join("tokenspeed"))
        .ok_or_else(|| CliError::new("no cache folder is known", "HOME is not set", "set TOKENSPEED_HOME to a folder"))
}

/// Resolve MODEL. Looks at the file system, reads nothing.
pub fn resolve_model(model: &str) -> Result<ModelPath, CliError> {
    if let Some(config) = model.strip_prefix("dummy:") {
        let path = PathBuf::from(config);
        let path = if path.is_dir() { path.join("config.json") } else { path };
        if path.is_file() {
            return Ok(ModelPath::Dummy(path));
        }
        return Err(CliError::new("no such config file", config, "dummy: takes the path of a config.json"));
    }
    let path = Path::new(model);
    if path.is_dir() {
        if path.join("config.json").is_file() {
            return Ok(ModelPath::Folder(path.to_owned()));
        }
        return only_gguf(path).ok_or_else(|| {
            CliError::new(
                "the folder holds no model",
                model,
                "a model folder has a config.json, or exactly one .gguf file",
            )
        });
    }
    if path.is_file() {
        let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        return if is_gguf {
            Ok(ModelPath::Gguf(path.to_owned()))
        } else {
            Err(CliError::new("not a model file", model, "MODEL is a folder, a .gguf file or a pulled name"))
        };
    }
    let is_name = !model.is_empty() && !model.starts_with(['/', '.', '~']) && !model.contains("..");
    if is_name {
        let folder = home()?.join("models").join(model);
        if folder.join("config.json").is_file() {
            return Ok(ModelPath::Folder(folder));
        }
        if let Some(gguf) = only_gguf(&folder) {
            return Ok(gguf);
        }
    }
    let hint = if super::pull::is_known(model) {
        format!("run: tokenspeed pull {model}")
    } else {
        "MODEL is a folder, a .gguf file, a name given to 'tokenspeed pull', or dummy:CONFIG.json".to_owned()
    };
    Err(CliError::new("no such model", model, hint))
}

fn only_gguf(folder: &Path) -> Option<ModelPath> {
    let entries = std::fs::read_dir(folder).ok()?;
    let mut files = entries.flatten().map(|entry| entry.path()).filter(|path| {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) && path.is_file()
    });
    let first = files.next()?;
    files.next().is_none().then_some(ModelPath::Gguf(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulled_model_is_served_under_the_name_it_was_pulled_by() {
        let home = Path::new("/cache/tokenspeed");
        let gguf = ModelPath::Gguf(home.join("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"));
        assert_eq!(gguf.pulled_name(home).as_deref(), Some("smollm2-135m"));
        let folder = ModelPath::Folder(home.join("models/org/model"));
        assert_eq!(folder.pulled_name(home).as_deref(), Some("org/model"));
        assert_eq!(ModelPath::Gguf("/elsewhere/a.gguf".into()).pulled_name(home), None);
        assert_eq!(ModelPath::Gguf(home.join("models/a.gguf")).pulled_name(home), None);
    }

    #[test]
    fn folders_files_and_dummies() {
        let root = std::env::temp_dir().join(format!("tokenspeed-model-path-{}", std::process::id()));
        let folder = root.join("tiny");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(root.join("a.gguf"), b"").expect("a file");
        std::fs::write(root.join("b.txt"), b"").expect("a file");
        let text = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
        assert!(resolve_model(&text(folder.clone())).expect_err("empty").what.contains("holds no model"));
        std::fs::write(folder.join("config.json"), b"{}").expect("a file");
        let found = resolve_model(&text(folder.clone())).expect("a folder");
        assert_eq!((found.clone(), found.default_name()), (ModelPath::Folder(folder.clone()), "tiny".into()));
        let gguf = resolve_model(&text(root.join("a.gguf"))).expect("a file");
        assert_eq!(gguf.default_name(), "a");
        assert_eq!(resolve_model(&text(root.clone())).expect("one gguf inside"), gguf);
        let dummy = resolve_model(&format!("dummy:{}", text(folder.join("config.json")))).expect("a config");
        assert_eq!(dummy.default_name(), "tiny");
        assert!(resolve_model(&text(root.join("b.txt"))).is_err());
        assert!(resolve_model("dummy:/no/such/config.json").is_err());
        let missing = resolve_model("smollm2-135m-not-pulled").expect_err("missing");
        assert!(missing.hint.contains("MODEL is"), "{missing:?}");
        std::fs::remove_dir_all(root).expect("cleaned up");
    }
}
