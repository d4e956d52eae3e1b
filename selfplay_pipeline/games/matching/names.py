"""Paper titles and reviewer names.

The first eight of each are DialOp's (Lin et al., arXiv 2305.20076, `TASKS` and `WORKERS`). They keep DialOp's order,
since the human games store indices; the rest serve larger boards. Of the 134 human games one, number 32 counted from 0,
showed its players other reviewers; `tests/unit/test_matching.py` recovers them from its proposals.
"""

from collections.abc import Sequence

PAPERS = (
    "BLEU: a Method for Automatic Evaluation of MT",
    "Electra: Pre-training Text Encoders as Discriminators",
    "GloVe: Global Vectors for Word Representation",
    "GLUE: A Multi-Task Benchmark and Analysis Platform for NLU",
    "LLaMA: Open and Efficient Foundation Language Models",
    "RoBERTa: A Robustly Optimized BERT Pretraining Approach",
    "QuAC: Question Answering in Context",
    "SWAG: An Adversarial Dataset for Commonsense Inference",
    "METEOR: An Automatic Metric for MT Evaluation",
    "ROUGE: A Package for Automatic Evaluation of Summaries",
    "BART: Denoising Sequence-to-Sequence Pre-training",
    "ALBERT: A Lite BERT for Self-supervised Learning",
    "SQuAD: Questions for Machine Comprehension of Text",
    "CoQA: A Conversational Question Answering Challenge",
    "XLNet: Generalized Autoregressive Pretraining",
    "DeBERTa: Decoding-enhanced BERT with Disentangled Attention",
)

REVIEWERS = (
    "Ava Li",
    "Daniel Nguyen",
    "Sofia Patel",
    "Andrei Petrov",
    "Morgan Reed",
    "Joseph Santos",
    "Ethan Smith",
    "Noah Wilson",
    "Amara Okafor",
    "Lucas Brown",
    "Mei Tanaka",
    "Omar Haddad",
    "Ingrid Larsen",
    "Priya Sharma",
    "Tomas Novak",
    "Zainab Yusuf",
)


def normalise(name: str) -> str:
    """Returns a name without case, decoration and extra white space, for comparison."""
    return " ".join(name.replace("*", " ").replace("_", " ").split()).strip(" .,;'\"`").casefold()


def short_titles(papers: Sequence[str]) -> list[str]:
    """Returns the titles up to the colon, or whole titles if the short ones are not distinct."""
    short = [paper.split(":")[0] for paper in papers]
    return short if len(set(short)) == len(short) else list(papers)
