"""Train a network with PyTorch, and write it as outputs/digits.onnx."""

import os

import torch
from digits import check, keep_unseen, load

torch.manual_seed(7)
train_x, test_x, train_y, test_y = load()
x, y = torch.from_numpy(train_x), torch.from_numpy(train_y)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for epoch in range(15):
    for batch in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1:2}  loss {loss.item():.4f}", flush=True)
model.eval()
with torch.no_grad():
    expected = model(torch.from_numpy(test_x)).numpy()
print(f"accuracy on images it has never seen: {(expected.argmax(1) == test_y).mean():.4f}")

os.makedirs("outputs", exist_ok=True)
path = os.path.join("outputs", "digits.onnx")
torch.onnx.export(
    model,
    (torch.from_numpy(test_x[:2]),),
    path,
    input_names=["image"],
    output_names=["scores"],
    # Without this the file takes as many rows as the example has, and no other number.
    dynamic_shapes=({0: torch.export.Dim("rows")},),
    external_data=False,  # weights inside the file: the model is one file
    verbose=False,
)
check(path, test_x, expected)
keep_unseen(test_x, test_y)
