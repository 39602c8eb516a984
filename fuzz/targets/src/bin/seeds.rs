//! Writes the seeds of one target: `seeds TARGET FOLDER`.

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = words.as_slice() else { return Err(std::io::Error::other("seeds TARGET FOLDER")) };
    let target = selvedge_fuzz::TARGETS.iter().find(|target| target.name == name);
    let target = target.ok_or_else(|| std::io::Error::other("there is no such target"))?;
    std::fs::create_dir_all(folder)?;
    for (number, seed) in (target.seeds)().into_iter().enumerate() {
        std::fs::write(format!("{folder}/seed-{number}"), seed)?;
    }
    Ok(())
}
