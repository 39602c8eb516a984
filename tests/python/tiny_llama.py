"""llama.cpp's server with a tiny model of random weights, on loopback.

    python tiny_llama.py MODEL.gguf

Writes the model, serves it on a free port, prints the address, and ends with standard input. The model says the words below in an order
of no meaning, in the server's own wire formats. Needs `xllamacpp` and `gguf`; `cargo xtask test` installs them.
"""

import sys

import gguf
import numpy
import xllamacpp

WORDS = ["▁thread", "▁log", "▁commit", "▁lease", "▁epoch", "▁Grüße", "▁wait", "▁tool", ".", ",", "▁run", "▁end"]
EMBED, HEADS, LAYERS, FEED, CONTEXT = 64, 4, 2, 128, 4096
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def write(path):
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + WORDS
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(WORDS)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBED)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(EMBED // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(place) for place in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(CHAT)
    random = numpy.random.default_rng(7)

    def tensor(name, *shape):
        writer.add_tensor(name, random.normal(0, 0.3, shape).astype(numpy.float32))

    tensor("token_embd.weight", len(tokens), EMBED)
    for layer in range(LAYERS):
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"]:
            tensor(f"blk.{layer}.{name}.weight", EMBED, EMBED)
        tensor(f"blk.{layer}.ffn_gate.weight", FEED, EMBED)
        tensor(f"blk.{layer}.ffn_up.weight", FEED, EMBED)
        tensor(f"blk.{layer}.ffn_down.weight", EMBED, FEED)
        for name in ["attn_norm", "ffn_norm"]:
            writer.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(EMBED, dtype=numpy.float32))
    writer.add_tensor("output_norm.weight", numpy.ones(EMBED, dtype=numpy.float32))
    output = random.normal(0, 1, (len(tokens), EMBED)).astype(numpy.float32)
    # Only words are said, so an answer ends at its limit.
    output[: len(tokens) - len(WORDS)] = 0
    writer.add_tensor("output.weight", output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    path = sys.argv[1]
    write(path)
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.fit_params = False
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


main()
