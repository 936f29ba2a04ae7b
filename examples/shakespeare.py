"""A text model that predicts the next character (N47), trained on the first nine tenths of a text, and text drawn from it.

The text is read as parallel streams, a piece at a time. Each piece begins with the state its predecessor ended with
(truncated back-propagation through time).
"""

from __future__ import annotations

import numpy as np
from common import SHORT, data_folder, main, outcome

import pellucid as pc
from pellucid.datasets import load_text

STREAMS, STEPS, EPOCHS, UNITS = (4, 16, 1, 16) if SHORT else (64, 64, 25, 400)


def network(symbols: int) -> pc.Layer:
    """Under a million parameters: each character as 64 numbers, one LSTM, dropout, a score for every character."""
    return pc.Embedding(symbols, 64) >> pc.LSTM(UNITS, "every", streams=STREAMS) >> pc.Dropout(0.4) >> pc.Linear(symbols)


def load() -> tuple[np.ndarray, np.ndarray, str]:
    """The codes of the first nine tenths, those of the rest, and the alphabet."""
    codes, alphabet = load_text(data_folder("tinyshakespeare") / "input.txt")
    cut = len(codes) * 9 // 10
    return codes[:cut], codes[cut:], alphabet


def sample(model: pc.Network, alphabet: str, start: str, length: int, seed: int, temperature: float = 0.7) -> str:
    """Draw character after character from what the model expects to follow the last 100."""
    rng, text = np.random.default_rng(seed), start
    for _ in range(length):
        recent = np.array([[alphabet.index(c) for c in text[-100:]]])
        scores = model(recent)[0, -1] / temperature
        p = np.exp(scores - scores.max(), dtype=np.float64)
        text += alphabet[rng.choice(len(alphabet), p=p / p.sum())]
    return text


def run(seed: int) -> dict:
    train, test, alphabet = load()
    model = pc.Network(network(len(alphabet)), (None,), "softmax_cross_entropy", seed=seed)
    X, y = pc.cut_streams(train[:-1], STREAMS, STEPS), pc.cut_streams(train[1:], STREAMS, STEPS)
    optimizer = pc.AdamW(pc.OneCycle(0.004), weight_decay=0.01, clip_norm=1.0)
    history = model.fit(X, y, epochs=EPOCHS, batch_size=STREAMS, order="given", optimizer=optimizer, engine="jax")
    long = min(1000, (len(test) - 1) // 4)
    result = model.evaluate(pc.cut_streams(test[:-1], 1, long), pc.cut_streams(test[1:], 1, long))
    print(sample(model, alphabet, "\n", 10 if SHORT else 400, seed))
    return outcome(model, history, nats_per_character=result["loss"], accuracy=result["accuracy"])


if __name__ == "__main__":
    main("Next character of Shakespeare (N47), last tenth of the text", run)
